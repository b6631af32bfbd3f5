package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.similarities.Similarity;

/** Inner products of a weighted query with the documents' impacts: score(d) = sum over t of weight[t] * impact[d, t]. */
public final class ImpactSearch {
  private static final Similarity SIMILARITY = new ImpactSimilarity();

  private ImpactSearch() {}

  /** The best k documents that share a term with the query, packed as OpenIndex.best says. */
  public static byte[] search(OpenIndex index, byte[] terms, byte[] weights, int k) throws IOException {
    return index.reading(() -> index.best(summed(terms, weights), SIMILARITY, k));
  }

  /** One float32 for each given ordinal: the same number search() gives for that document, 0 when no term matches. */
  public static byte[] scores(OpenIndex index, byte[] terms, byte[] weights, byte[] ordinals) throws IOException {
    return index.reading(
        () -> {
          IntBuffer wanted = Packed.ints(ordinals);
          long[] ordered = new long[wanted.limit()];
          for (int i = 0; i < ordered.length; i++) {
            ordered[i] = ((long) wanted.get(i) << 32) | i;
          }
          Arrays.sort(ordered);
          double[] sums = new double[ordered.length];
          LeafReader leaf = index.leaf();
          if (leaf != null) {
            for (Map.Entry<Term, Float> clause : summed(terms, weights).entrySet()) {
              PostingsEnum postings = leaf.postings(clause.getKey(), PostingsEnum.FREQS);
              if (postings != null) {
                addProducts(postings, clause.getValue(), ordered, sums);
              }
            }
          }
          ByteBuffer packed = ByteBuffer.allocate(4 * sums.length).order(ByteOrder.LITTLE_ENDIAN);
          for (double sum : sums) {
            packed.putFloat((float) sum);
          }
          return packed.array();
        });
  }

  private static void addProducts(PostingsEnum postings, float weight, long[] ordered, double[] sums)
      throws IOException {
    int document = postings.docID();
    for (long entry : ordered) {
      int ordinal = (int) (entry >> 32);
      if (document < ordinal) {
        document = postings.advance(ordinal);
      }
      if (document == ordinal) {
        // A float product and a double sum, as Lucene's own scorers do it, so that both ways give the same bits.
        sums[(int) entry] += weight * postings.freq();
      }
    }
  }

  /** A term that comes twice weighs the sum of its weights. */
  private static Map<Term, Float> summed(byte[] terms, byte[] weights) {
    IntBuffer ids = Packed.ints(terms);
    FloatBuffer values = Packed.floats(weights);
    Map<Integer, Float> byId = new HashMap<>();
    for (int i = 0; i < ids.limit(); i++) {
      byId.merge(ids.get(i), values.get(i), Float::sum);
    }
    Map<Term, Float> byTerm = new HashMap<>();
    byId.forEach(
        (id, weight) -> {
          if (weight > 0) {
            byTerm.put(new Term(IndexBuilder.CONTENTS, Integer.toString(id)), weight);
          }
        });
    return byTerm;
  }
}
