package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Term;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.BoostQuery;
import org.apache.lucene.search.BulkScorer;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.LeafCollector;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.search.TopScoreDocCollector;
import org.apache.lucene.search.TopScoreDocCollectorManager;
import org.apache.lucene.search.Weight;
import org.apache.lucene.search.similarities.BM25Similarity;
import org.apache.lucene.search.similarities.RawTFSimilarity;
import org.apache.lucene.search.similarities.Similarity;
import org.apache.lucene.util.ArrayUtil;
import org.apache.lucene.util.Bits;
import org.apache.lucene.util.BytesRef;

/**
 * Inner products of a weighted query, whose terms are distinct and have weights above 0, with the documents' impacts. The
 * search is Lucene's, of a BooleanQuery of boosted TermQueries: it adds a document's products, which are float32, in double,
 * and rounds the sum to float32.
 */
public final class ImpactSearch {
  private ImpactSearch() {}

  /** The best k documents of an index of words, by Lucene's own BM25 in place of impacts: a system to compare with. */
  public static byte[] bm25(OpenIndex index, byte[] terms, byte[] weights, int k, float k1, float b) throws IOException {
    Map<Term, Float> words = weighted(new Packed(terms), weights);
    long never = System.nanoTime() + Long.MAX_VALUE / 2;
    return index.reading(() -> packed(best(index, new BM25Similarity(k1, b), words, k, null, never)));
  }

  /** The impact of each given term in each given ordinal: one int32 each, 0 for none; by ordinal. The ordinals ascend. */
  public static byte[] impacts(OpenIndex index, byte[] terms, byte[] ordinals) throws IOException {
    Packed names = new Packed(terms);
    List<Term> wanted = IntStream.range(0, names.count()).mapToObj(i -> term(names, i)).toList();
    return index.reading(() -> impacts(index, wanted, Packed.ints(ordinals)));
  }

  /**
   * A search in one call: the best k documents that score above 0, of those of a filter if there is one, and the impacts of
   * all terms in these and in others. Without an analyzer the texts begin with as many terms as there are weights; with
   * one, with a text, whose words weigh their counts. Behind them stand the conditions of documents that the query names.
   * Packed: the terms with a space between two, the float32 weights, the hits as int32 ordinals and as many float32 scores,
   * by score, then by ordinal, the ordinals of hits, named and others, ascending, their impacts as in impacts(), and the
   * ordinals of those named. CancellationException when it takes longer than so many nanoseconds.
   */
  public static byte[] find(
      OpenIndex index,
      Analyzer analyzer,
      byte[] texts,
      byte[] weights,
      byte[] others,
      int k,
      DocumentFilter filter,
      long nanoseconds)
      throws IOException {
    long deadline = System.nanoTime() + nanoseconds;
    Packed given = new Packed(texts);
    Map<Term, Float> query =
        analyzer == null ? weighted(given, weights) : counted(WordAnalyzer.words(analyzer, given.text(0)));
    String words = query.keySet().stream().map(Term::text).collect(Collectors.joining(" "));
    return index.reading(
        () -> {
          ScoreDoc[] hits = best(index, new RawTFSimilarity(), query, k, filter, deadline);
          int[] named = DocumentFilter.named(index, given.from(analyzer == null ? query.size() : 1), filter);
          IntStream.Builder documents = IntStream.builder();
          Stream.of(hits).forEach(hit -> documents.add(hit.doc));
          IntBuffer more = Packed.ints(others);
          IntStream.range(0, more.limit()).map(more::get).forEach(documents);
          IntStream.of(named).forEach(documents);
          int[] ordinals = documents.build().sorted().distinct().toArray();
          return Packed.parts(
              List.of(
                  Packed.utf8(words),
                  Packed.floats(query.values()),
                  packed(hits),
                  Packed.ints(ordinals),
                  impacts(index, query.keySet(), IntBuffer.wrap(ordinals)),
                  Packed.ints(named)));
        });
  }

  /**
   * The best k documents that score above 0. Where among is given, only these documents; what they score does not depend
   * on it. CancellationException past the deadline.
   */
  private static ScoreDoc[] best(
      OpenIndex index, Similarity similarity, Map<Term, Float> weights, int k, DocumentFilter among, long deadline)
      throws IOException {
    BooleanQuery.Builder query = new BooleanQuery.Builder();
    weights.forEach((term, boost) -> query.add(new BoostQuery(new TermQuery(term), boost), BooleanClause.Occur.SHOULD));
    IndexSearcher searcher = index.searcher();
    searcher.setSimilarity(similarity);
    Weight weight = searcher.createWeight(searcher.rewrite(query.build()), ScoreMode.TOP_SCORES, 1f);
    int limit = Math.max(1, Math.min(k, OpenIndex.count(index)));
    // Beyond the limit hits need not be counted, so Lucene may skip what can't enter the best k; these stay exact.
    TopScoreDocCollector collector = new TopScoreDocCollectorManager(limit, limit).newCollector();
    for (LeafReaderContext segment : index.segments()) {
      BulkScorer scorer = weight.bulkScorer(segment);
      if (scorer == null) {
        continue;
      }
      LeafCollector collecting = collector.getLeafCollector(segment);
      Bits here = among == null ? null : among.in(segment);
      int end = segment.reader().maxDoc();
      for (int first = 0; first < end; first += Math.min(OpenIndex.WINDOW, end - first)) {
        OpenIndex.throwAfter(deadline);
        scorer.score(collecting, here, first, first + Math.min(OpenIndex.WINDOW, end - first));
      }
    }
    ScoreDoc[] hits = collector.topDocs().scoreDocs;
    int count = 0;
    while (count < hits.length && hits[count].score > 0) {
      count++;
    }
    return ArrayUtil.copyOfSubArray(hits, 0, count);
  }

  private static byte[] packed(ScoreDoc[] hits) {
    ByteBuffer packed = Packed.little(new byte[8 * hits.length]);
    for (int i = 0; i < hits.length; i++) {
      packed.putInt(4 * i, hits[i].doc);
      packed.putFloat(4 * (hits.length + i), hits[i].score);
    }
    return packed.array();
  }

  private static byte[] impacts(OpenIndex index, Collection<Term> names, IntBuffer wanted) throws IOException {
    int width = names.size();
    ByteBuffer packed = Packed.little(new byte[4 * width * wanted.limit()]);
    int first = 0;
    for (LeafReaderContext segment : index.segments()) {
      int end = first;
      while (end < wanted.limit() && wanted.get(end) < segment.docBase + segment.reader().maxDoc()) {
        end++;
      }
      Terms terms = Terms.getTerms(segment.reader(), IndexBuilder.CONTENTS);
      TermsEnum each = first == end ? TermsEnum.EMPTY : terms.iterator();
      int column = 0;
      for (Term name : names) {
        if (each.seekExact(name.bytes())) {
          PostingsEnum postings = each.postings(null, PostingsEnum.FREQS);
          for (int j = first; j < end; j++) {
            int document = wanted.get(j) - segment.docBase;
            int next = postings.docID() < document ? postings.advance(document) : postings.docID();
            packed.putInt(4 * (width * j + column), next == document ? postings.freq() : 0);
          }
        }
        column++;
      }
      first = end;
    }
    return packed.array();
  }

  /**
   * All terms of the documents from first up to the one before end, packed. The last part has three int32 for
   * each: the document counted from first, the place of the term among the other parts, and the impact. Asks every term of
   * the index once.
   */
  public static byte[] rows(OpenIndex index, int first, int end) throws IOException {
    return index.reading(
        () -> {
          int[] found = new int[3 * 1024];
          int size = 0;
          List<byte[]> packed = new ArrayList<>();
          TermsEnum each = index.eachTerm(IndexBuilder.CONTENTS);
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
              found[size++] = packed.size() - 1;
              found[size++] = postings.freq();
            }
          }
          packed.add(Packed.ints(ArrayUtil.copyOfSubArray(found, 0, size)));
          return Packed.parts(packed);
        });
  }

  /** As many terms as there are weights, with these. */
  private static Map<Term, Float> weighted(Packed terms, byte[] weights) {
    FloatBuffer values = Packed.floats(weights);
    Map<Term, Float> weighted = new LinkedHashMap<>();
    for (int i = 0; i < values.limit(); i++) {
      weighted.put(term(terms, i), values.get(i));
    }
    return weighted;
  }

  /** Words with their counts. */
  private static Map<Term, Float> counted(List<String> words) {
    Map<Term, Float> counts = new LinkedHashMap<>();
    words.forEach(word -> counts.merge(new Term(IndexBuilder.CONTENTS, word), 1f, Float::sum));
    return counts;
  }

  private static Term term(Packed names, int index) {
    return new Term(IndexBuilder.CONTENTS, names.checked(index));
  }
}
