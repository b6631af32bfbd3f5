package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Map;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.Term;
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
import org.apache.lucene.search.similarities.Similarity;
import org.apache.lucene.util.Bits;

/**
 * Weighted sums of terms, by Lucene's own queries: a BooleanQuery of boosted TermQueries. Lucene adds a document's products,
 * which are float32, in double, and rounds the sum to float32.
 */
final class TermSearch {
  /** Documents between two looks at the clock. */
  private static final int WINDOW = 1 << 16;

  private final OpenIndex index;
  private final Similarity similarity;

  TermSearch(OpenIndex index, Similarity similarity) {
    this.index = index;
    this.similarity = similarity;
  }

  /**
   * The best k documents that score above 0: m int32 ordinals, m float32 scores; by score, then by ordinal. Where among is
   * given, only these documents; what they score does not depend on it. LateException when System.nanoTime() is past the
   * deadline before all windows of documents are searched.
   */
  byte[] best(Map<Term, Float> weights, int k, DocumentFilter among, long deadline) throws IOException {
    int limit = Math.max(1, Math.min(k, OpenIndex.count(index)));
    // Beyond the limit hits need not be counted, so Lucene may skip what can't enter the best k; these stay exact.
    TopScoreDocCollector collector = new TopScoreDocCollectorManager(limit, limit).newCollector();
    Weight weight = weight(weights);
    for (LeafReaderContext segment : index.segments()) {
      BulkScorer scorer = weight.bulkScorer(segment);
      if (scorer == null) {
        continue;
      }
      LeafCollector collecting = collector.getLeafCollector(segment);
      Bits here = among == null ? null : among.in(segment);
      int end = segment.reader().maxDoc();
      for (int first = 0; first < end; first += Math.min(WINDOW, end - first)) {
        if (System.nanoTime() - deadline >= 0) {
          throw new LateException();
        }
        scorer.score(collecting, here, first, first + Math.min(WINDOW, end - first));
      }
    }
    return packed(collector.topDocs().scoreDocs);
  }

  private Weight weight(Map<Term, Float> weights) throws IOException {
    BooleanQuery.Builder query = new BooleanQuery.Builder();
    weights.forEach((term, boost) -> query.add(new BoostQuery(new TermQuery(term), boost), BooleanClause.Occur.SHOULD));
    IndexSearcher searcher = index.searcher();
    searcher.setSimilarity(similarity);
    return searcher.createWeight(searcher.rewrite(query.build()), ScoreMode.TOP_SCORES, 1f);
  }

  private static byte[] packed(ScoreDoc[] hits) {
    int count = 0;
    while (count < hits.length && hits[count].score > 0) {
      count++;
    }
    ByteBuffer packed = ByteBuffer.allocate(8 * count).order(ByteOrder.LITTLE_ENDIAN);
    for (int i = 0; i < count; i++) {
      packed.putInt(4 * i, hits[i].doc);
      packed.putFloat(4 * (count + i), hits[i].score);
    }
    return packed.array();
  }
}
