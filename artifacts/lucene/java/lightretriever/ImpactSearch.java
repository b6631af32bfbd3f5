package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.util.Arrays;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.util.BytesRef;

/** Inner products of a weighted query with the documents' impacts: score(d) = sum over t of weight[t] * impact[d, t]. */
public final class ImpactSearch {
  private ImpactSearch() {}

  /** The best k documents that share a term with the query, packed as OpenIndex.best says. */
  public static byte[] search(OpenIndex index, byte[] terms, byte[] weights, int k) throws IOException {
    WeightedTerms query = WeightedTerms.of(terms, weights);
    return index.reading(() -> ImpactScan.best(postings(index.leaf(), query), query.weights, k));
  }

  /** One float32 for each given ordinal: the same number search() gives for that document, 0 when no term matches. */
  public static byte[] scores(OpenIndex index, byte[] terms, byte[] weights, byte[] ordinals) throws IOException {
    WeightedTerms query = WeightedTerms.of(terms, weights);
    return index.reading(
        () -> {
          IntBuffer wanted = Packed.ints(ordinals);
          long[] ordered = new long[wanted.limit()];
          for (int i = 0; i < ordered.length; i++) {
            ordered[i] = ((long) wanted.get(i) << 32) | i;
          }
          Arrays.sort(ordered);
          double[] sums = new double[ordered.length];
          PostingsEnum[] lists = postings(index.leaf(), query);
          for (int i = 0; i < lists.length; i++) {
            if (lists[i] != null) {
              addProducts(lists[i], query.weights[i], ordered, sums);
            }
          }
          ByteBuffer packed = ByteBuffer.allocate(4 * sums.length).order(ByteOrder.LITTLE_ENDIAN);
          for (double sum : sums) {
            packed.putFloat((float) sum);
          }
          return packed.array();
        });
  }

  /** The posting list of every term, before its first document; null for a term that no document has. */
  private static PostingsEnum[] postings(LeafReader leaf, WeightedTerms query) throws IOException {
    PostingsEnum[] lists = new PostingsEnum[query.ids.length];
    Terms terms = leaf == null ? null : leaf.terms(IndexBuilder.CONTENTS);
    if (terms != null) {
      TermsEnum each = terms.iterator();
      for (int i = 0; i < lists.length; i++) {
        if (each.seekExact(new BytesRef(Integer.toString(query.ids[i])))) {
          lists[i] = each.postings(null, PostingsEnum.FREQS);
        }
      }
    }
    return lists;
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
        // A float product and a double sum, term by term as in ImpactScan, so that both ways give the same bits.
        sums[(int) entry] += weight * postings.freq();
      }
    }
  }
}
