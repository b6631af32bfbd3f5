package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.TreeMap;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.LeafReader;
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
          TreeMap<Long, Integer> counts = new TreeMap<>();
          LeafReader leaf = index.leaf();
          SortedSetDocValues values = leaf == null ? DocValues.emptySortedSet() : DocValues.getSortedSet(leaf, name);
          for (int document : documents) {
            if (values.advanceExact(document)) {
              for (int i = 0; i < values.docValueCount(); i++) {
                counts.merge(values.nextOrd(), 1, Integer::sum);
              }
            }
          }
          List<byte[]> texts = new ArrayList<>(counts.size());
          for (long value : counts.keySet()) {
            texts.add(values.lookupOrd(value).utf8ToString().getBytes(StandardCharsets.UTF_8));
          }
          byte[] packed = Packed.parts(texts);
          ByteBuffer whole = ByteBuffer.allocate(4 + 4 * counts.size() + packed.length).order(ByteOrder.LITTLE_ENDIAN);
          whole.putInt(counts.size());
          counts.values().forEach(whole::putInt);
          return whole.put(packed).array();
        });
  }
}
