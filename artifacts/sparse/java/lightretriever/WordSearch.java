package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Term;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.similarities.BM25Similarity;

/** BM25 on the words of a text: every word of the query weighs as often as it comes, as in Anserini's bag of words. */
public final class WordSearch {
  private WordSearch() {}

  /** The best k documents by the words of a field, packed as TermSearch.best says. A null filter has all. */
  public static byte[] search(
      OpenIndex index, Analyzer analyzer, byte[] field, byte[] text, int k, float k1, float b, DocumentFilter filter)
      throws IOException {
    Map<Term, Float> words = counts(analyzer, Packed.text(field), Packed.text(text));
    return index.reading(
        () -> searching(index, k1, b).best(words, Map.of(), k, filter == null ? null : filter.documents()));
  }

  /** One float32 for each given ordinal, packed as TermSearch.scores says; the ordinals ascend. */
  public static byte[] scores(
      OpenIndex index, Analyzer analyzer, byte[] field, byte[] text, byte[] ordinals, float k1, float b)
      throws IOException {
    Map<Term, Float> words = counts(analyzer, Packed.text(field), Packed.text(text));
    return index.reading(() -> searching(index, k1, b).scores(words, Packed.ints(ordinals)));
  }

  /**
   * One float32 for each given ordinal: the share of a text's different words that the document has. The ordinals ascend.
   * Nothing for a text without words.
   */
  public static byte[] shares(OpenIndex index, Analyzer analyzer, byte[] field, byte[] text, byte[] ordinals)
      throws IOException {
    Set<Term> words = counts(analyzer, Packed.text(field), Packed.text(text)).keySet();
    IntBuffer wanted = Packed.ints(ordinals);
    int[] found = new int[wanted.limit()];
    index.reading(
        () -> {
          for (Term word : words) {
            PostingsEnum postings = index.leaf() == null ? null : index.leaf().postings(word, PostingsEnum.NONE);
            for (int i = 0; postings != null && i < found.length; i++) {
              int document = postings.docID() < wanted.get(i) ? postings.advance(wanted.get(i)) : postings.docID();
              found[i] += document == wanted.get(i) ? 1 : 0;
            }
          }
          return null;
        });
    ByteBuffer packed = ByteBuffer.allocate(words.isEmpty() ? 0 : 4 * found.length).order(ByteOrder.LITTLE_ENDIAN);
    for (int i = 0; packed.hasRemaining(); i++) {
      packed.putFloat((float) found[i] / words.size());
    }
    return packed.array();
  }

  /** How many documents were given a text whose words are indexed in a field, one without any word included. */
  public static int count(OpenIndex index, byte[] field) throws IOException {
    String name = Packed.text(field);
    return index.reading(
        () -> {
          LeafReader leaf = index.leaf();
          NumericDocValues lengths = leaf == null ? null : leaf.getNormValues(name);
          int count = 0;
          while (lengths != null && lengths.nextDoc() != NumericDocValues.NO_MORE_DOCS) {
            count++;
          }
          return count;
        });
  }

  /**
   * The indexed words of the documents from first up to the one before end, as often as each has them, with a space between
   * two, packed by Packed.parts. Asks every word of the index once.
   */
  public static byte[] words(OpenIndex index, byte[] field, int first, int end) throws IOException {
    String name = Packed.text(field);
    return index.reading(
        () -> {
          StringBuilder[] found = new StringBuilder[end - first];
          Terms terms = index.leaf() == null ? null : index.leaf().terms(name);
          TermsEnum each = terms == null ? TermsEnum.EMPTY : terms.iterator();
          PostingsEnum postings = null;
          while (each.next() != null) {
            postings = each.postings(postings, PostingsEnum.FREQS);
            for (int document = postings.advance(first); document < end; document = postings.nextDoc()) {
              if (found[document - first] == null) {
                found[document - first] = new StringBuilder();
              }
              found[document - first].append((each.term().utf8ToString() + " ").repeat(postings.freq()));
            }
          }
          List<byte[]> packed = new ArrayList<>(found.length);
          for (StringBuilder words : found) {
            packed.add((words == null ? "" : words.toString().strip()).getBytes(StandardCharsets.UTF_8));
          }
          return Packed.parts(packed);
        });
  }

  private static TermSearch searching(OpenIndex index, float k1, float b) {
    return new TermSearch(index, new BM25Similarity(k1, b));
  }

  private static Map<Term, Float> counts(Analyzer analyzer, String field, String text) throws IOException {
    Map<Term, Float> counts = new HashMap<>();
    try (TokenStream tokens = analyzer.tokenStream(field, text)) {
      CharTermAttribute word = tokens.addAttribute(CharTermAttribute.class);
      tokens.reset();
      while (tokens.incrementToken()) {
        if (word.length() > 0) {
          counts.merge(new Term(field, word.toString()), 1f, Float::sum);
        }
      }
      tokens.end();
    }
    return counts;
  }
}
