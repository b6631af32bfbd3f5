package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Term;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.similarities.BM25Similarity;
import org.apache.lucene.util.ArrayUtil;
import org.apache.lucene.util.BytesRef;

/**
 * Inner products of a weighted query with the documents' impacts: score(d) = sum over t of weight[t] * impact[d, t]. A
 * query's terms are distinct, and their weights above 0.
 */
public final class ImpactSearch {
  private ImpactSearch() {}

  /** The best k documents of an index of words, by Lucene's own BM25 in place of impacts: a system to compare with. */
  public static byte[] bm25(OpenIndex index, byte[] terms, byte[] ends, byte[] weights, int k, float k1, float b)
      throws IOException {
    Map<Term, Float> words = weighted(new Strings(terms, ends), weights);
    long never = System.nanoTime() + Long.MAX_VALUE / 2;
    return index.reading(() -> new TermSearch(index, new BM25Similarity(k1, b)).best(words, k, null, never));
  }

  /** The impact of each given term in each given ordinal: one int32 each, 0 for none; by ordinal. The ordinals ascend. */
  public static byte[] impacts(OpenIndex index, byte[] terms, byte[] ends, byte[] ordinals) throws IOException {
    Strings names = new Strings(terms, ends);
    return index.reading(() -> impacts(index, names, Packed.ints(ordinals)));
  }

  /**
   * A search in one call: the best k documents that score above 0, of those of a filter if there is one, and the impacts of
   * all terms in these and in others, whose ordinals ascend. Without an analyzer the terms are as many as the weights; with one, texts has one text, whose
   * words weigh their counts. Behind them stand the conditions of documents that the query names. Packed by Packed.parts:
   * the words of the text with a space between two, their float32 weights, the hits as TermSearch.best packs them, the
   * ordinals of hits, named and others, ascending, their impacts as in impacts(), and the ordinals of those named.
   *
   * <p>Throws LateException when it takes longer than so many nanoseconds.
   */
  public static byte[] find(
      OpenIndex index,
      Analyzer analyzer,
      byte[] texts,
      byte[] ends,
      byte[] weights,
      byte[] others,
      int k,
      DocumentFilter filter,
      long nanoseconds)
      throws IOException {
    long deadline = System.nanoTime() + nanoseconds;
    Strings given = new Strings(texts, ends);
    int terms = analyzer == null ? weights.length / Float.BYTES : 1;
    String words = analyzer == null ? "" : WordAnalyzer.words(analyzer, given.get(0));
    Map<String, Float> counts = new LinkedHashMap<>();
    for (String word : words.isEmpty() ? new String[0] : words.split(" ")) {
      counts.merge(word, 1f, Float::sum);
    }
    byte[] values = analyzer == null ? weights : Packed.floats(counts.values());
    Strings names = analyzer == null ? given.first(terms) : Strings.of(counts.keySet());
    return index.reading(
        () -> {
          byte[] hits = new TermSearch(index, new ImpactSimilarity()).best(weighted(names, values), k, filter, deadline);
          int[] named = DocumentFilter.named(index, given, terms, filter);
          int[] ordinals =
              IntStream.concat(IntStream.of(named), IntStream.concat(first(hits, hits.length / 8), first(others, others.length / 4)))
                  .sorted()
                  .distinct()
                  .toArray();
          return Packed.parts(
              List.of(
                  String.join(" ", counts.keySet()).getBytes(StandardCharsets.UTF_8),
                  analyzer == null ? new byte[0] : values,
                  hits,
                  Packed.ints(ordinals),
                  impacts(index, names, IntBuffer.wrap(ordinals)),
                  Packed.ints(named)));
        });
  }

  private static IntStream first(byte[] packed, int count) {
    return IntStream.range(0, count).map(Packed.ints(packed)::get);
  }

  private static byte[] impacts(OpenIndex index, Strings names, IntBuffer wanted) throws IOException {
    int width = names.count();
    ByteBuffer packed = ByteBuffer.allocate(4 * width * wanted.limit()).order(ByteOrder.LITTLE_ENDIAN);
    int first = 0;
    for (LeafReaderContext segment : index.segments()) {
      int end = end(wanted, first, segment);
      TermsEnum each = first == end ? TermsEnum.EMPTY : terms(segment.reader().terms(IndexBuilder.CONTENTS));
      for (int i = 0; i < width; i++) {
        if (each.seekExact(names.utf8(i))) {
          PostingsEnum postings = each.postings(null, PostingsEnum.FREQS);
          for (int j = first; j < end; j++) {
            packed.putInt(4 * (width * j + i), impact(postings, wanted.get(j) - segment.docBase));
          }
        }
      }
      first = end;
    }
    return packed.array();
  }

  /**
   * All terms of the documents from first up to the one before end, packed by Packed.counted. The first part has three
   * int32 for each, the document counted from first, the place of the term among the other parts, and the impact. Asks
   * every term of the index once.
   */
  public static byte[] rows(OpenIndex index, int first, int end) throws IOException {
    return index.reading(
        () -> {
          int[] found = new int[3 * 1024];
          int size = 0;
          List<byte[]> packed = new ArrayList<>();
          packed.add(null);
          TermsEnum each = terms(index.terms(IndexBuilder.CONTENTS));
          PostingsEnum postings = null;
          while (each.next() != null) {
            postings = each.postings(postings, PostingsEnum.FREQS);
            int document = postings.advance(first);
            if (document < end) {
              packed.add(BytesRef.deepCopyOf(each.term()).bytes);
            }
            for (; document < end; document = postings.nextDoc()) {
              found = ArrayUtil.grow(found, size + 3);
              found[size++] = document - first;
              found[size++] = packed.size() - 2;
              found[size++] = postings.freq();
            }
          }
          ByteBuffer numbers = ByteBuffer.allocate(4 * size).order(ByteOrder.LITTLE_ENDIAN);
          numbers.asIntBuffer().put(found, 0, size);
          packed.set(0, numbers.array());
          return Packed.counted(packed);
        });
  }

  /** Where the ascending ordinals of a segment's documents end, which begin at a place. */
  private static int end(IntBuffer ordinals, int first, LeafReaderContext segment) {
    int end = first;
    while (end < ordinals.limit() && ordinals.get(end) < segment.docBase + segment.reader().maxDoc()) {
      end++;
    }
    return end;
  }

  /** Every term of some documents; none for null. */
  private static TermsEnum terms(Terms terms) throws IOException {
    return terms == null ? TermsEnum.EMPTY : terms.iterator();
  }

  /** The terms whose weights have this sign, with these weights' absolute values. */
  private static Map<Term, Float> weighted(Strings terms, byte[] weights) {
    FloatBuffer values = Packed.floats(weights);
    Map<Term, Float> weighted = new LinkedHashMap<>();
    for (int i = 0; i < terms.count(); i++) {
      weighted.put(new Term(IndexBuilder.CONTENTS, terms.utf8(i)), values.get(i));
    }
    return weighted;
  }

  /** The impact in a document, 0 when it lacks the term. Documents must be asked for in ascending order. */
  private static int impact(PostingsEnum postings, int document) throws IOException {
    int found = postings.docID() < document ? postings.advance(document) : postings.docID();
    return found == document ? postings.freq() : 0;
  }
}
