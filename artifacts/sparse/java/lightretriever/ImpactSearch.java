package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.TreeMap;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.util.BytesRef;

/** Inner products of a weighted query with the documents' impacts: score(d) = sum over t of weight[t] * impact[d, t]. */
public final class ImpactSearch {
  private ImpactSearch() {}

  /** The best k documents that score above 0, packed as OpenIndex.best says. A null filter has all; asked: see ImpactScan. */
  public static byte[] search(
      OpenIndex index, byte[] terms, byte[] weights, int k, DocumentFilter filter, double asked) throws IOException {
    WeightedTerms query = WeightedTerms.of(terms, weights);
    long[] among = filter == null ? null : filter.words();
    return index.reading(() -> ImpactScan.best(ImpactList.of(index, query), OpenIndex.count(index), k, among, asked));
  }

  /** One float32 for each given ordinal: the same number search() gives for that document, 0 when no term matches. */
  public static byte[] scores(OpenIndex index, byte[] terms, byte[] weights, byte[] ordinals) throws IOException {
    WeightedTerms query = WeightedTerms.of(terms, weights);
    return index.reading(
        () -> {
          long[] ordered = ordered(ordinals);
          float[] sums = new float[ordered.length];
          for (ImpactList list : ImpactList.of(index, query)) {
            addProducts(list, ordered, sums);
          }
          ByteBuffer packed = ByteBuffer.allocate(4 * sums.length).order(ByteOrder.LITTLE_ENDIAN);
          for (float sum : sums) {
            packed.putFloat(sum);
          }
          return packed.array();
        });
  }

  /** The impact of each given term, which are distinct, in each given ordinal: one int32 each, 0 for none; by ordinal. */
  public static byte[] impacts(OpenIndex index, byte[] terms, byte[] ordinals) throws IOException {
    IntBuffer ids = Packed.ints(terms);
    return index.reading(
        () -> {
          long[] ordered = ordered(ordinals);
          int width = ids.limit();
          ByteBuffer packed = ByteBuffer.allocate(4 * width * ordered.length).order(ByteOrder.LITTLE_ENDIAN);
          TermsEnum each = ImpactList.terms(index.leaf());
          for (int i = 0; i < width && each != null; i++) {
            if (each.seekExact(new BytesRef(Integer.toString(ids.get(i))))) {
              PostingsEnum postings = each.postings(null, PostingsEnum.FREQS);
              for (long entry : ordered) {
                int document = (int) (entry >> 32);
                if (ImpactList.from(postings, document) == document) {
                  packed.putInt(4 * (width * (int) entry + i), postings.freq());
                }
              }
            }
          }
          return packed.array();
        });
  }

  /** All terms of a document: n int32 ids and n int32 impacts, by id. Asks every term of the index for the document. */
  public static byte[] terms(OpenIndex index, int ordinal) throws IOException {
    return index.reading(
        () -> {
          TreeMap<Integer, Integer> impacts = new TreeMap<>();
          TermsEnum each = ImpactList.terms(index.leaf());
          PostingsEnum postings = null;
          while (each != null && each.next() != null) {
            postings = each.postings(postings, PostingsEnum.FREQS);
            if (ImpactList.from(postings, ordinal) == ordinal) {
              impacts.put(Integer.parseInt(each.term().utf8ToString()), postings.freq());
            }
          }
          ByteBuffer packed = ByteBuffer.allocate(8 * impacts.size()).order(ByteOrder.LITTLE_ENDIAN);
          impacts.keySet().forEach(packed::putInt);
          impacts.values().forEach(packed::putInt);
          return packed.array();
        });
  }

  /** The ordinals in ascending order, each with its place among those given in the lower half. */
  private static long[] ordered(byte[] ordinals) {
    IntBuffer wanted = Packed.ints(ordinals);
    long[] ordered = new long[wanted.limit()];
    for (int i = 0; i < ordered.length; i++) {
      ordered[i] = ((long) wanted.get(i) << 32) | i;
    }
    Arrays.sort(ordered);
    return ordered;
  }

  private static void addProducts(ImpactList list, long[] ordered, float[] sums) throws IOException {
    for (long entry : ordered) {
      // Floats, list by list as in ImpactScan, so that both ways give the same bits.
      sums[(int) entry] += list.weight * list.impact((int) (entry >> 32));
    }
  }
}
