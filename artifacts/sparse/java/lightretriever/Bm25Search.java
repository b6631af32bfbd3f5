package lightretriever;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.similarities.BM25Similarity;

/**
 * Lucene's own BM25 over an index of words, as a system to compare with: every word of the query weighs as often as it
 * comes, as in Anserini's bag of words.
 */
public final class Bm25Search {
  private static final long NEVER = System.nanoTime() + Long.MAX_VALUE / 2;

  private Bm25Search() {}

  /** The best k documents by the words of a text, packed as TermSearch.best says. */
  public static byte[] search(OpenIndex index, Analyzer analyzer, byte[] text, int k, float k1, float b)
      throws IOException {
    Map<Term, Float> words = counts(analyzer, Packed.text(text));
    return index.reading(() -> new TermSearch(index, new BM25Similarity(k1, b)).best(words, Map.of(), k, null, NEVER));
  }

  private static Map<Term, Float> counts(Analyzer analyzer, String text) throws IOException {
    Map<Term, Float> counts = new HashMap<>();
    try (TokenStream tokens = analyzer.tokenStream(IndexBuilder.CONTENTS, text)) {
      CharTermAttribute word = tokens.addAttribute(CharTermAttribute.class);
      tokens.reset();
      while (tokens.incrementToken()) {
        if (word.length() > 0) {
          counts.merge(new Term(IndexBuilder.CONTENTS, word.toString()), 1f, Float::sum);
        }
      }
      tokens.end();
    }
    return counts;
  }
}
