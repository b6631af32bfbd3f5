package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.SortedSetDocValues;

/** What given documents have in a keyword field. */
public final class FieldValues {
  private FieldValues() {}

  /** Every value and in how many of the documents it is: n, n int32 counts, then the values, packed by Packed.parts. */
  public static byte[] counts(OpenIndex index, byte[] ordinals, byte[] field) throws IOException {
    String name = FilterFields.lucene(Packed.text(field));
    return index.reading(
        () -> {
          IntBuffer given = Packed.ints(ordinals);
          int[] documents = new int[given.limit()];
          given.get(documents);
          Arrays.sort(documents);
          TreeMap<String, Integer> counts = new TreeMap<>();
          int next = 0;
          for (LeafReaderContext segment : index.segments()) {
            int end = segment.docBase + segment.reader().maxDoc();
            SortedSetDocValues values = DocValues.getSortedSet(segment.reader(), name);
            TreeMap<Long, Integer> here = new TreeMap<>();
            for (; next < documents.length && documents[next] < end; next++) {
              if (values.advanceExact(documents[next] - segment.docBase)) {
                for (int i = 0; i < values.docValueCount(); i++) {
                  here.merge(values.nextOrd(), 1, Integer::sum);
                }
              }
            }
            for (Map.Entry<Long, Integer> one : here.entrySet()) {
              counts.merge(values.lookupOrd(one.getKey()).utf8ToString(), one.getValue(), Integer::sum);
            }
          }
          List<byte[]> texts = new ArrayList<>(counts.size());
          for (String value : counts.keySet()) {
            texts.add(value.getBytes(StandardCharsets.UTF_8));
          }
          byte[] packed = Packed.parts(texts);
          ByteBuffer whole = ByteBuffer.allocate(4 + 4 * counts.size() + packed.length).order(ByteOrder.LITTLE_ENDIAN);
          whole.putInt(counts.size());
          counts.values().forEach(whole::putInt);
          return whole.put(packed).array();
        });
  }
}
