package lightretriever;

import org.apache.lucene.search.CollectionStatistics;
import org.apache.lucene.search.TermStatistics;
import org.apache.lucene.search.similarities.Similarity;

/** A term scores its boost times its frequency, which is its impact, as a float32. */
final class ImpactSimilarity extends Similarity {
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
