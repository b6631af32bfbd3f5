package lightretriever;

import io.anserini.analysis.DefaultEnglishAnalyzer;
import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.AnalyzerWrapper;
import org.apache.lucene.analysis.FilteringTokenFilter;
import org.apache.lucene.analysis.TokenFilter;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.en.EnglishPossessiveFilter;
import org.apache.lucene.analysis.pattern.PatternReplaceCharFilter;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.analysis.tokenattributes.OffsetAttribute;
import org.apache.lucene.analysis.tokenattributes.TypeAttribute;

/**
 * The words of Anserini's DefaultEnglishAnalyzer, and beside them: of scripts without spaces, every two neighbouring
 * signs; of names such as c++, c# and .net, the name with its signs in letters (cplusplus, csharp, dotnet); of two parts
 * with a hyphen between them, such as wi-fi, both in one word (wifi). Nothing is left out, so an index that was written
 * without them is searched as before.
 *
 * <p>In the field for spellings, the words of Lucene's StandardAnalyzer that have only letters, at least two: as the text
 * spells them, but in lower case and without the possessive.
 */
public final class WordAnalyzer extends AnalyzerWrapper {
  private static final Pattern PLUS = Pattern.compile("(?<![\\p{L}\\p{N}])(\\p{L}{1,8})\\+\\+(?![\\p{L}\\p{N}+])");
  private static final Pattern SHARP = Pattern.compile("(?<![\\p{L}\\p{N}])(\\p{L}{1,8})#(?![\\p{L}\\p{N}#])");
  private static final Pattern DOT = Pattern.compile("(?<![\\p{L}\\p{N}.)])\\.(\\p{L}{2,20})(?![\\p{L}\\p{N}])");
  private static final String PART = "[\\p{IsLatin}\\p{IsGreek}\\p{IsCyrillic}\\p{M}\\p{N}]{1,20}+";
  private static final Pattern HYPHEN =
      Pattern.compile(
          "(?<![\\p{L}\\p{M}\\p{N}])((?=\\p{L})" + PART + ")[-\u2010\u2011](?=(" + PART + ")(?![\\p{L}\\p{M}\\p{N}]))");

  private final Analyzer standard = new StandardAnalyzer();
  private final Analyzer english = DefaultEnglishAnalyzer.newDefaultInstance();

  private WordAnalyzer() {
    super(PER_FIELD_REUSE_STRATEGY);
  }

  public static Analyzer create() {
    return new WordAnalyzer();
  }

  /** The words of each text in their order, with a space between two, packed by Packed.parts. */
  public static byte[] words(Analyzer analyzer, byte[] texts, byte[] ends) throws IOException {
    Strings given = new Strings(texts, ends);
    List<byte[]> found = new ArrayList<>(given.count());
    for (int i = 0; i < given.count(); i++) {
      StringBuilder words = new StringBuilder();
      try (TokenStream tokens = analyzer.tokenStream(IndexBuilder.WORDS, given.get(i))) {
        CharTermAttribute word = tokens.addAttribute(CharTermAttribute.class);
        tokens.reset();
        while (tokens.incrementToken()) {
          words.append(words.length() == 0 ? "" : " ").append(word);
        }
        tokens.end();
      }
      found.add(words.toString().getBytes(StandardCharsets.UTF_8));
    }
    return Packed.parts(found);
  }

  @Override
  protected Analyzer getWrappedAnalyzer(String field) {
    return isSpelling(field) ? standard : english;
  }

  @Override
  protected Reader wrapReader(String field, Reader text) {
    if (isSpelling(field)) {
      return text;
    }
    Reader plus = new PatternReplaceCharFilter(PLUS, "$1++ $1plusplus", text);
    Reader sharp = new PatternReplaceCharFilter(SHARP, "$1# $1sharp", plus);
    Reader dot = new PatternReplaceCharFilter(DOT, ".$1 dot$1", sharp);
    return new PatternReplaceCharFilter(HYPHEN, "$1 $1$2 ", dot);
  }

  @Override
  protected TokenStreamComponents wrapComponents(String field, TokenStreamComponents components) {
    TokenStream words = components.getTokenStream();
    TokenStream all = isSpelling(field) ? new Letters(new EnglishPossessiveFilter(words)) : new Pairs(words);
    return new TokenStreamComponents(components.getSource(), all);
  }

  private static boolean isSpelling(String field) {
    return field.equals(IndexBuilder.SPELLINGS);
  }

  private static final class Letters extends FilteringTokenFilter {
    private final CharTermAttribute word = addAttribute(CharTermAttribute.class);

    Letters(TokenStream words) {
      super(words);
    }

    @Override
    protected boolean accept() {
      return word.length() > 1 && word.codePoints().allMatch(Character::isLetter);
    }
  }

  private static final class Pairs extends TokenFilter {
    /** Kinds of which Lucene makes a token of each sign, and of a whole run of them. */
    private static final Set<String> SIGNS = Set.of("<IDEOGRAPHIC>", "<HIRAGANA>");

    private static final Set<String> RUNS = Set.of("<KATAKANA>", "<SOUTHEAST_ASIAN>");

    private final CharTermAttribute word = addAttribute(CharTermAttribute.class);
    private final OffsetAttribute place = addAttribute(OffsetAttribute.class);
    private final TypeAttribute kind = addAttribute(TypeAttribute.class);
    private final Queue<String> pairs = new ArrayDeque<>();
    private String before = "";
    private int end = -1;

    Pairs(TokenStream words) {
      super(words);
    }

    @Override
    public boolean incrementToken() throws IOException {
      if (!pairs.isEmpty()) {
        word.setEmpty().append(pairs.remove());
        return true;
      }
      if (!input.incrementToken()) {
        return false;
      }
      String text = word.toString();
      if (SIGNS.contains(kind.type())) {
        if (place.startOffset() == end) {
          pairs.add(before + text);
        }
        before = text;
        end = place.endOffset();
      } else if (RUNS.contains(kind.type())) {
        int[] signs = text.codePoints().toArray();
        for (int i = 0; signs.length > 2 && i + 1 < signs.length; i++) {
          pairs.add(new String(signs, i, 2));
        }
      }
      return true;
    }

    @Override
    public void reset() throws IOException {
      super.reset();
      pairs.clear();
      end = -1;
    }
  }
}
