package lightretriever;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.index.Term;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.BoostAttribute;
import org.apache.lucene.search.FuzzyTermsEnum;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.StringHelper;

/** The words of the corpus as they are spelt there, in lower case: what is near a word that it lacks, and completions. */
public final class Spellings {
  /** Words from this length on may differ in two letters, shorter ones in one; neighbours that are swapped are one. */
  private static final int LONG = 6;

  /** Words of this length are like so many others that only a frequent one, and it alone, is meant. */
  private static final int SHORT = 3;

  /** A word of the corpus is taken for a misspelling where one letter makes it a word of so many times as many documents. */
  private static final int MISSPELT_TIMES = 200;

  private Spellings() {}

  /**
   * For each word, the word of the corpus that is spelt most like it, packed. It is empty where nothing is near, and where
   * the corpus has the word, in whatever form, unless it is a misspelling there.
   */
  public static byte[] corrections(OpenIndex index, Analyzer analyzer, byte[] words) throws IOException {
    return index.reading(() -> Packed.map(words, word -> correction(index, analyzer, word)));
  }

  /**
   * The words that begin with a text, UTF-8, the text itself included, those of most documents first, up to so many, with
   * their numbers of documents, packed.
   */
  public static byte[] completions(OpenIndex index, byte[] beginning, int most) throws IOException {
    return index.reading(
        () -> {
          Map<String, Integer> found = new LinkedHashMap<>();
          beginning(index, new BytesRef(beginning)).stream()
              .sorted(Comparator.comparingInt(Word::documents).reversed())
              .limit(most)
              .forEach(word -> found.put(word.text(), word.documents()));
          return Packed.counts(found);
        });
  }

  /**
   * For each word in lower case, the words of the corpus of which the analyzer makes the same terms, with a space between
   * two, packed. They are looked for among those that begin as both the word and its term do, without the term's last letter
   * if it is a beginning: gallery and galleries have the term galleri.
   */
  public static byte[] forms(OpenIndex index, Analyzer analyzer, byte[] words) throws IOException {
    return index.reading(() -> Packed.map(words, word -> String.join(" ", forms(index, analyzer, word))));
  }

  private static Set<String> forms(OpenIndex index, Analyzer analyzer, String word) throws IOException {
    Set<String> forms = new LinkedHashSet<>();
    List<String> terms = WordAnalyzer.words(analyzer, word);
    String term = String.join(" ", terms);
    int common = 0;
    while (common < Math.min(word.length(), term.length()) && word.charAt(common) == term.charAt(common)) {
      common++;
    }
    if (common > 1 && common == term.length() && common < word.length()) {
      common = word.offsetByCodePoints(common, -1);
    }
    if (index.frequency(new Term(IndexBuilder.SPELLINGS, word)) > 0) {
      forms.add(word);
    }
    if (common == 0) {
      return forms;
    }
    for (Word other : beginning(index, new BytesRef(word.substring(0, common)))) {
      if (WordAnalyzer.words(analyzer, other.text()).equals(terms)) {
        forms.add(other.text());
      }
    }
    return forms;
  }

  /** The words that begin with a text, in the order of their UTF-8. */
  private static List<Word> beginning(OpenIndex index, BytesRef prefix) throws IOException {
    List<Word> found = new ArrayList<>();
    TermsEnum each = index.eachTerm(IndexBuilder.SPELLINGS);
    boolean more = each.seekCeil(prefix) != TermsEnum.SeekStatus.END;
    for (; more && StringHelper.startsWith(each.term(), prefix); more = each.next() != null) {
      found.add(new Word(each.term().utf8ToString(), each.docFreq(), 1f));
    }
    return found;
  }

  /** The word that is most alike; among such, that of most documents. */
  private static String correction(OpenIndex index, Analyzer analyzer, String word) throws IOException {
    int length = word.codePointCount(0, word.length());
    int documents = documents(index, analyzer, word);
    if (documents > 0) {
      return length > SHORT ? misspelt(index, word, documents) : "";
    }
    List<Word> near = near(index, word, length < LONG ? 1 : 2);
    return length == SHORT
        ? shortCorrection(index, near, word)
        : text(near.stream().max(Comparator.comparingDouble(Word::alike).thenComparing(Word::documents)));
  }

  /** The words that differ in at most so many letters, but not in the first. */
  private static List<Word> near(OpenIndex index, String word, int letters) throws IOException {
    Term asked = new Term(IndexBuilder.SPELLINGS, word);
    Terms words = index.terms(IndexBuilder.SPELLINGS);
    TermsEnum each = words == null ? TermsEnum.EMPTY : new FuzzyTermsEnum(words, asked, letters, 1, true);
    List<Word> near = new ArrayList<>();
    while (each.next() != null) {
      float alike = each.attributes().getAttribute(BoostAttribute.class).getBoost();
      near.add(new Word(each.term().utf8ToString(), each.docFreq(), alike));
    }
    return near;
  }

  private static String text(Optional<Word> word) {
    return word.map(Word::text).orElse("");
  }

  /**
   * The word that has two neighbouring letters swapped, or one letter more, if five documents and one in 200 have it, and ten
   * times as many as any other such word. Another letter in place of one says too little of a word of three.
   */
  private static String shortCorrection(OpenIndex index, List<Word> near, String word) throws IOException {
    List<Word> likely =
        near.stream()
            .filter(
                other -> {
                  int more = other.text().codePointCount(0, other.text().length()) - SHORT;
                  return more > 0 || (more == 0 && letters(other.text()).equals(letters(word)));
                })
            .sorted(Comparator.comparingInt(Word::documents).reversed())
            .toList();
    int least = Math.max(5, OpenIndex.count(index) / 200);
    int most = likely.isEmpty() ? 0 : likely.get(0).documents();
    int second = likely.size() < 2 ? 0 : likely.get(1).documents();
    return most >= least && most >= 10 * second ? likely.get(0).text() : "";
  }

  /** The letters of a word in the order of the alphabet. */
  private static String letters(String word) {
    int[] sorted = word.codePoints().sorted().toArray();
    return new String(sorted, 0, sorted.length);
  }

  /** The word that a word of few documents is a misspelling of; none for an id of a document, which is a name. */
  private static String misspelt(OpenIndex index, String word, int documents) throws IOException {
    if (documents > OpenIndex.count(index) / MISSPELT_TIMES || index.frequency(new Term(IndexBuilder.ID, word)) > 0) {
      return "";
    }
    return text(
        near(index, word, 1).stream()
            .filter(other -> other.documents() >= MISSPELT_TIMES * documents)
            .max(Comparator.comparingInt(Word::documents)));
  }

  /**
   * The number of documents that have the word in some form: that of the rarest term that the analyzer makes of it, or of its
   * spelling where that is more. All documents for a stop word, of which the analyzer makes no term.
   */
  private static int documents(OpenIndex index, Analyzer analyzer, String word) throws IOException {
    int least = OpenIndex.count(index);
    for (String stem : WordAnalyzer.words(analyzer, word)) {
      least = Math.min(least, index.frequency(new Term(IndexBuilder.CONTENTS, stem)));
    }
    return Math.max(least, index.frequency(new Term(IndexBuilder.SPELLINGS, word)));
  }

  /** A word, the number of documents that have it, and how much it is like the word that is asked for. */
  private record Word(String text, int documents, float alike) {}
}
