package lightretriever;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.similarities.BM25Similarity;

/** BM25 on the words of a text: every word of the query weighs as often as it comes, as in Anserini's bag of words. */
public final class WordSearch {
  private WordSearch() {}

  /** The best k documents, packed as OpenIndex.best says. */
  public static byte[] search(OpenIndex index, Analyzer analyzer, byte[] text, int k, float k1, float b)
      throws IOException {
    return index.reading(() -> index.best(counts(analyzer, Packed.text(text)), new BM25Similarity(k1, b), k));
  }

  /** One float32 for each given ordinal, packed as OpenIndex.scores says; the ordinals ascend. */
  public static byte[] scores(OpenIndex index, Analyzer analyzer, byte[] text, byte[] ordinals, float k1, float b)
      throws IOException {
    return index.reading(
        () ->
            index.scores(counts(analyzer, Packed.text(text)), new BM25Similarity(k1, b), Packed.ints(ordinals)));
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
