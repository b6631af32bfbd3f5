package lightretriever;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.SortedSetDocValues;

/** What given documents have in a keyword field. */
public final class FieldValues {
  private FieldValues() {}

  /**
   * Every value and in how many documents of a filter, or of all where it is null, it is, packed by Packed.counts; null for
   * more than so many values.
   */
  public static byte[] counts(OpenIndex index, DocumentFilter among, byte[] field, int most) throws IOException {
    return index.reading(() -> counts(index, Packed.text(field), most, among));
  }

  private static byte[] counts(OpenIndex index, String field, int most, DocumentFilter among) throws IOException {
    int size = among == null ? OpenIndex.count(index) : DocumentFilter.count(among);
    String name = FilterFields.lucene(field);
    TreeMap<String, Integer> counts = new TreeMap<>();
    for (LeafReaderContext segment : index.segments()) {
      int end = segment.docBase + segment.reader().maxDoc();
      SortedSetDocValues values = DocValues.getSortedSet(segment.reader(), name);
      // Where there are more values than documents, an array of all values would be larger than what is counted.
      int[] ofAll = values.getValueCount() <= size ? new int[(int) values.getValueCount()] : null;
      Map<Long, Integer> ofSome = new HashMap<>();
      int each = DocumentFilter.next(among, segment.docBase, end);
      for (; each < end; each = DocumentFilter.next(among, each + 1, end)) {
        if (!values.advanceExact(each - segment.docBase)) {
          continue;
        }
        for (int i = 0; i < values.docValueCount(); i++) {
          long value = values.nextOrd();
          if (ofAll != null) {
            ofAll[(int) value]++;
          } else {
            ofSome.merge(value, 1, Integer::sum);
          }
        }
      }
      for (int i = 0; ofAll != null && i < ofAll.length; i++) {
        if (ofAll[i] > 0) {
          ofSome.put((long) i, ofAll[i]);
        }
      }
      for (Map.Entry<Long, Integer> one : ofSome.entrySet()) {
        counts.merge(values.lookupOrd(one.getKey()).utf8ToString(), one.getValue(), Integer::sum);
        if (counts.size() > most) {
          return null;
        }
      }
    }
    List<byte[]> texts = new ArrayList<>(counts.size());
    for (String value : counts.keySet()) {
      texts.add(value.getBytes(StandardCharsets.UTF_8));
    }
    return Packed.counts(texts, counts.values());
  }
}
