package lightretriever;

import org.apache.lucene.index.FieldInvertState;
import org.apache.lucene.search.CollectionStatistics;
import org.apache.lucene.search.TermStatistics;
import org.apache.lucene.search.similarities.Similarity;

/** A term's share of the score is the query's weight times the impact, which the index holds as the term frequency. */
final class ImpactSimilarity extends Similarity {
  @Override
  public long computeNorm(FieldInvertState state) {
    return 1L;
  }

  @Override
  public SimScorer scorer(float boost, CollectionStatistics collection, TermStatistics... terms) {
    return new SimScorer() {
      @Override
      public float score(float frequency, long norm) {
        return boost * frequency;
      }
    };
  }
}
