package lightretriever;

import java.io.IOException;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
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

  /** Every value and in how many of the documents it is, packed by Packed.counts; null for more than so many values. */
  public static byte[] counts(OpenIndex index, byte[] ordinals, byte[] field, int most) throws IOException {
    IntBuffer given = Packed.ints(ordinals);
    int[] documents = new int[given.limit()];
    given.get(documents);
    Arrays.sort(documents);
    return index.reading(
        () -> {
          int[] place = {0};
          return counts(
              index,
              Packed.text(field),
              most,
              documents.length,
              (from, end) -> {
                while (place[0] < documents.length && documents[place[0]] < from) {
                  place[0]++;
                }
                return place[0] < documents.length ? Math.min(documents[place[0]], end) : end;
              });
        });
  }

  /** The same of the documents of a filter, or of all where it is null. */
  public static byte[] countsAmong(OpenIndex index, DocumentFilter among, byte[] field, int most)
      throws IOException {
    int size = among == null ? OpenIndex.count(index) : DocumentFilter.count(among);
    return index.reading(
        () -> counts(index, Packed.text(field), most, size, (from, end) -> DocumentFilter.next(among, from, end)));
  }

  private static byte[] counts(OpenIndex index, String field, int most, int size, Documents documents)
      throws IOException {
    String name = FilterFields.lucene(field);
    TreeMap<String, Integer> counts = new TreeMap<>();
    for (LeafReaderContext segment : index.segments()) {
      int end = segment.docBase + segment.reader().maxDoc();
      SortedSetDocValues values = DocValues.getSortedSet(segment.reader(), name);
      // Where there are more values than documents, an array of all values would be larger than what is counted.
      int[] ofAll = values.getValueCount() <= size ? new int[(int) values.getValueCount()] : null;
      Map<Long, Integer> ofSome = new HashMap<>();
      int each = documents.next(segment.docBase, end);
      for (; each < end; each = documents.next(each + 1, end)) {
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

  /** The documents to look at. */
  private interface Documents {
    /** The first one from a document on and before the end; the end if there is none. */
    int next(int from, int end);
  }
}
