package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Term;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.util.ArrayUtil;
import org.apache.lucene.util.BytesRef;

/**
 * Inner products of a weighted query with the documents' impacts: score(d) = sum over t of weight[t] * impact[d, t]. A
 * query's terms are distinct, and no weight is 0.
 */
public final class ImpactSearch {
  private ImpactSearch() {}

  /** The best k documents that score above 0, packed as TermSearch.best says. A null filter has all. */
  public static byte[] search(OpenIndex index, byte[] terms, byte[] weights, int k, DocumentFilter filter)
      throws IOException {
    Map<Term, Float> added = weighted(terms, weights, 1);
    Map<Term, Float> subtracted = weighted(terms, weights, -1);
    return index.reading(
        () ->
            new TermSearch(index, new ImpactSimilarity())
                .best(added, subtracted, k, filter == null ? null : filter.documents()));
  }

  /** One float32 for each given ordinal: the number that search() gives for that document. The ordinals ascend. */
  public static byte[] scores(OpenIndex index, byte[] terms, byte[] weights, byte[] ordinals) throws IOException {
    IntBuffer ids = Packed.ints(terms);
    FloatBuffer values = Packed.floats(weights);
    IntBuffer wanted = Packed.ints(ordinals);
    return index.reading(
        () -> {
          double[] added = new double[wanted.limit()];
          double[] subtracted = new double[wanted.limit()];
          TermsEnum each = terms(index.leaf());
          for (int i = 0; i < ids.limit(); i++) {
            if (each.seekExact(name(ids.get(i)))) {
              PostingsEnum postings = each.postings(null, PostingsEnum.FREQS);
              float weight = Math.abs(values.get(i));
              double[] sums = values.get(i) > 0 ? added : subtracted;
              for (int j = 0; j < sums.length; j++) {
                sums[j] += weight * impact(postings, wanted.get(j));
              }
            }
          }
          ByteBuffer packed = ByteBuffer.allocate(4 * wanted.limit()).order(ByteOrder.LITTLE_ENDIAN);
          for (int j = 0; j < added.length; j++) {
            packed.putFloat((float) added[j] - (float) subtracted[j]);
          }
          return packed.array();
        });
  }

  /** The impact of each given term in each given ordinal: one int32 each, 0 for none; by ordinal. The ordinals ascend. */
  public static byte[] impacts(OpenIndex index, byte[] terms, byte[] ordinals) throws IOException {
    IntBuffer ids = Packed.ints(terms);
    IntBuffer wanted = Packed.ints(ordinals);
    return index.reading(
        () -> {
          int width = ids.limit();
          ByteBuffer packed = ByteBuffer.allocate(4 * width * wanted.limit()).order(ByteOrder.LITTLE_ENDIAN);
          TermsEnum each = terms(index.leaf());
          for (int i = 0; i < width; i++) {
            if (each.seekExact(name(ids.get(i)))) {
              PostingsEnum postings = each.postings(null, PostingsEnum.FREQS);
              for (int j = 0; j < wanted.limit(); j++) {
                packed.putInt(4 * (width * j + i), impact(postings, wanted.get(j)));
              }
            }
          }
          return packed.array();
        });
  }

  /**
   * All terms of the documents from first up to the one before end: three int32 each, the
   * document counted from first, the term and the impact. Asks every term of the index once.
   */
  public static byte[] rows(OpenIndex index, int first, int end) throws IOException {
    return index.reading(
        () -> {
          int[] found = new int[3 * 1024];
          int size = 0;
          TermsEnum each = terms(index.leaf());
          PostingsEnum postings = null;
          while (each.next() != null) {
            postings = each.postings(postings, PostingsEnum.FREQS);
            int term = -1;
            for (int document = postings.advance(first); document < end; document = postings.nextDoc()) {
              term = term < 0 ? Integer.parseInt(each.term().utf8ToString()) : term;
              found = ArrayUtil.grow(found, size + 3);
              found[size++] = document - first;
              found[size++] = term;
              found[size++] = postings.freq();
            }
          }
          ByteBuffer packed = ByteBuffer.allocate(4 * size).order(ByteOrder.LITTLE_ENDIAN);
          packed.asIntBuffer().put(found, 0, size);
          return packed.array();
        });
  }

  /** Every term that has an impact in some document. */
  static TermsEnum terms(LeafReader leaf) throws IOException {
    Terms terms = leaf == null ? null : leaf.terms(IndexBuilder.CONTENTS);
    return terms == null ? TermsEnum.EMPTY : terms.iterator();
  }

  private static BytesRef name(int term) {
    return new BytesRef(Integer.toString(term));
  }

  /** The terms whose weights have this sign, with these weights' absolute values. */
  private static Map<Term, Float> weighted(byte[] terms, byte[] weights, int sign) {
    IntBuffer ids = Packed.ints(terms);
    FloatBuffer values = Packed.floats(weights);
    Map<Term, Float> weighted = new LinkedHashMap<>();
    for (int i = 0; i < ids.limit(); i++) {
      float weight = sign * values.get(i);
      if (weight > 0) {
        weighted.put(new Term(IndexBuilder.CONTENTS, Integer.toString(ids.get(i))), weight);
      }
    }
    return weighted;
  }

  /** The impact in a document, 0 when it lacks the term. Documents must be asked for in ascending order. */
  private static int impact(PostingsEnum postings, int document) throws IOException {
    int found = postings.docID() < document ? postings.advance(document) : postings.docID();
    return found == document ? postings.freq() : 0;
  }
}
