package lightretriever;

import io.anserini.analysis.DefaultEnglishAnalyzer;
import java.io.IOException;
import java.io.Reader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.AnalyzerWrapper;
import org.apache.lucene.analysis.FilteringTokenFilter;
import org.apache.lucene.analysis.LowerCaseFilter;
import org.apache.lucene.analysis.TokenFilter;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.ar.ArabicAnalyzer;
import org.apache.lucene.analysis.bg.BulgarianAnalyzer;
import org.apache.lucene.analysis.bn.BengaliAnalyzer;
import org.apache.lucene.analysis.ca.CatalanAnalyzer;
import org.apache.lucene.analysis.cz.CzechAnalyzer;
import org.apache.lucene.analysis.da.DanishAnalyzer;
import org.apache.lucene.analysis.de.GermanAnalyzer;
import org.apache.lucene.analysis.el.GreekAnalyzer;
import org.apache.lucene.analysis.en.EnglishPossessiveFilter;
import org.apache.lucene.analysis.es.SpanishAnalyzer;
import org.apache.lucene.analysis.et.EstonianAnalyzer;
import org.apache.lucene.analysis.eu.BasqueAnalyzer;
import org.apache.lucene.analysis.fa.PersianAnalyzer;
import org.apache.lucene.analysis.fi.FinnishAnalyzer;
import org.apache.lucene.analysis.fr.FrenchAnalyzer;
import org.apache.lucene.analysis.ga.IrishAnalyzer;
import org.apache.lucene.analysis.gl.GalicianAnalyzer;
import org.apache.lucene.analysis.hi.HindiAnalyzer;
import org.apache.lucene.analysis.hu.HungarianAnalyzer;
import org.apache.lucene.analysis.hy.ArmenianAnalyzer;
import org.apache.lucene.analysis.id.IndonesianAnalyzer;
import org.apache.lucene.analysis.it.ItalianAnalyzer;
import org.apache.lucene.analysis.lt.LithuanianAnalyzer;
import org.apache.lucene.analysis.lv.LatvianAnalyzer;
import org.apache.lucene.analysis.nl.DutchAnalyzer;
import org.apache.lucene.analysis.no.NorwegianAnalyzer;
import org.apache.lucene.analysis.pt.PortugueseAnalyzer;
import org.apache.lucene.analysis.ro.RomanianAnalyzer;
import org.apache.lucene.analysis.ru.RussianAnalyzer;
import org.apache.lucene.analysis.sr.SerbianAnalyzer;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.analysis.sv.SwedishAnalyzer;
import org.apache.lucene.analysis.ta.TamilAnalyzer;
import org.apache.lucene.analysis.te.TeluguAnalyzer;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.analysis.tokenattributes.OffsetAttribute;
import org.apache.lucene.analysis.tokenattributes.TypeAttribute;
import org.apache.lucene.analysis.tr.TurkishAnalyzer;

/**
 * The words of a language, as its Lucene analyzer makes them: split, in lower case, stemmed, without stop words. English is
 * Anserini's DefaultEnglishAnalyzer; "standard" has neither stems nor stop words. Telugu's leaves capitals of other scripts,
 * which are made small here. Spellings that look equal are one (SameSigns). In every language there are beside them:
 * of scripts without spaces, every two neighbouring signs; of names such as c++, c# and .net, the name with its signs in
 * letters (cplusplus, csharp, dotnet); of two parts with a hyphen between them, such as wi-fi, both in one word (wifi).
 *
 * <p>In the field for spellings, the words of Lucene's StandardAnalyzer that have only letters, at least two: as the text
 * spells them, but in lower case and without the possessive. In the field for phrases, the words of the language without
 * pairs of signs and words joined from parts, so that what stands side by side in a text does so in the index.
 */
public final class WordAnalyzer extends AnalyzerWrapper {
  private static final Map<String, Supplier<Analyzer>> LANGUAGES =
      Map.ofEntries(
          Map.entry("arabic", ArabicAnalyzer::new),
          Map.entry("armenian", ArmenianAnalyzer::new),
          Map.entry("basque", BasqueAnalyzer::new),
          Map.entry("bengali", BengaliAnalyzer::new),
          Map.entry("bulgarian", BulgarianAnalyzer::new),
          Map.entry("catalan", CatalanAnalyzer::new),
          Map.entry("czech", CzechAnalyzer::new),
          Map.entry("danish", DanishAnalyzer::new),
          Map.entry("dutch", DutchAnalyzer::new),
          Map.entry("estonian", EstonianAnalyzer::new),
          Map.entry("finnish", FinnishAnalyzer::new),
          Map.entry("french", FrenchAnalyzer::new),
          Map.entry("galician", GalicianAnalyzer::new),
          Map.entry("german", GermanAnalyzer::new),
          Map.entry("greek", GreekAnalyzer::new),
          Map.entry("hindi", HindiAnalyzer::new),
          Map.entry("hungarian", HungarianAnalyzer::new),
          Map.entry("indonesian", IndonesianAnalyzer::new),
          Map.entry("irish", IrishAnalyzer::new),
          Map.entry("italian", ItalianAnalyzer::new),
          Map.entry("latvian", LatvianAnalyzer::new),
          Map.entry("lithuanian", LithuanianAnalyzer::new),
          Map.entry("norwegian", NorwegianAnalyzer::new),
          Map.entry("persian", PersianAnalyzer::new),
          Map.entry("portuguese", PortugueseAnalyzer::new),
          Map.entry("romanian", RomanianAnalyzer::new),
          Map.entry("russian", RussianAnalyzer::new),
          Map.entry("serbian", SerbianAnalyzer::new),
          Map.entry("spanish", SpanishAnalyzer::new),
          Map.entry("swedish", SwedishAnalyzer::new),
          Map.entry("tamil", TamilAnalyzer::new),
          Map.entry("telugu", TeluguAnalyzer::new),
          Map.entry("turkish", TurkishAnalyzer::new),
          Map.entry("english", DefaultEnglishAnalyzer::newDefaultInstance),
          Map.entry("standard", StandardAnalyzer::new));

  private static final String PART = "[\\p{IsLatin}\\p{IsGreek}\\p{IsCyrillic}\\p{M}\\p{N}]{1,20}+";
  private static final List<Named.Rule> NAMES =
      List.of(
          new Named.Rule(
              Pattern.compile("(?<![\\p{L}\\p{N}])(\\p{L}{1,8})\\+\\+(?![\\p{L}\\p{N}+])"),
              "+",
              Named.WORD,
              name -> name.group() + " " + name.group(1) + "plusplus"),
          new Named.Rule(
              Pattern.compile("(?<![\\p{L}\\p{N}])(\\p{L}{1,8})#(?![\\p{L}\\p{N}#])"),
              "#",
              Named.WORD,
              name -> name.group() + " " + name.group(1) + "sharp"),
          new Named.Rule(
              Pattern.compile("(?<![\\p{L}\\p{N}.)])\\.(\\p{L}{2,20})(?![\\p{L}\\p{N}])"),
              ".",
              Named.NOTHING,
              name -> name.group() + " dot" + name.group(1)));
  private static final Named.Rule JOINED =
      new Named.Rule(
          Pattern.compile(
              "(?<![\\p{L}\\p{M}\\p{N}])((?=\\p{L})" + PART + ")[-\u2010\u2011](?=(" + PART + ")(?![\\p{L}\\p{M}\\p{N}]))"),
          "-\u2010\u2011",
          Named.MARKED_WORD,
          word -> word.group(1) + " " + word.group(1) + word.group(2) + " ");

  private static final Map<String, Analyzer> MADE = new ConcurrentHashMap<>();

  private final Analyzer standard = new StandardAnalyzer();
  private final Analyzer words;

  private WordAnalyzer(Analyzer words) {
    super(PER_FIELD_REUSE_STRATEGY);
    this.words = words;
  }

  /** The analyzer of a language, such as "english". */
  public static Analyzer create(byte[] language) {
    return ofLanguage(Packed.text(language));
  }

  static Analyzer ofLanguage(String name) {
    if (!LANGUAGES.containsKey(name)) {
      throw new IllegalArgumentException("there is no analyzer for the language " + name);
    }
    return MADE.computeIfAbsent(name, language -> new WordAnalyzer(LANGUAGES.get(language).get()));
  }

  /** The words of each text in their order, with a space between two, packed by Packed.parts. */
  public static byte[] words(Analyzer analyzer, byte[] texts, byte[] ends) throws IOException {
    Strings given = new Strings(texts, ends);
    List<byte[]> found = new ArrayList<>(given.count());
    for (int i = 0; i < given.count(); i++) {
      found.add(words(analyzer, given.get(i)).getBytes(StandardCharsets.UTF_8));
    }
    return Packed.parts(found);
  }

  /** The words of a text in their order, with a space between two. */
  static String words(Analyzer analyzer, String text) throws IOException {
    StringBuilder words = new StringBuilder();
    try (TokenStream tokens = analyzer.tokenStream(IndexBuilder.CONTENTS, text)) {
      CharTermAttribute word = tokens.addAttribute(CharTermAttribute.class);
      tokens.reset();
      while (tokens.incrementToken()) {
        if (word.length() > 0) {
          words.append(words.length() == 0 ? "" : " ").append(word);
        }
      }
      tokens.end();
    }
    return words.toString();
  }

  /**
   * The words of each text as in words(), and their places: two parts for each text, the words, and two int32 for each of
   * them, its first character and the one behind its last, in code points.
   */
  public static byte[] places(Analyzer analyzer, byte[] texts, byte[] ends) throws IOException {
    Strings given = new Strings(texts, ends);
    List<byte[]> found = new ArrayList<>(2 * given.count());
    for (int i = 0; i < given.count(); i++) {
      String text = given.get(i);
      int[] characters = new int[text.length() + 1];
      for (int j = 0; j < text.length(); j++) {
        characters[j + 1] = characters[j] + (Character.isLowSurrogate(text.charAt(j)) ? 0 : 1);
      }
      StringBuilder words = new StringBuilder();
      List<Integer> places = new ArrayList<>();
      try (TokenStream tokens = analyzer.tokenStream(IndexBuilder.CONTENTS, text)) {
        CharTermAttribute word = tokens.addAttribute(CharTermAttribute.class);
        OffsetAttribute place = tokens.addAttribute(OffsetAttribute.class);
        tokens.reset();
        while (tokens.incrementToken()) {
          if (word.length() > 0) {
            words.append(words.length() == 0 ? "" : " ").append(word);
            places.add(characters[Math.min(place.startOffset(), text.length())]);
            places.add(characters[Math.min(place.endOffset(), text.length())]);
          }
        }
        tokens.end();
      }
      found.add(words.toString().getBytes(StandardCharsets.UTF_8));
      ByteBuffer packed = ByteBuffer.allocate(4 * places.size()).order(ByteOrder.LITTLE_ENDIAN);
      places.forEach(packed::putInt);
      found.add(packed.array());
    }
    return Packed.parts(found);
  }

  @Override
  protected Analyzer getWrappedAnalyzer(String field) {
    return isSpelling(field) ? standard : words;
  }

  @Override
  protected Reader wrapReader(String field, Reader text) {
    Reader same = new SameSigns(text);
    if (isSpelling(field)) {
      return same;
    }
    for (Named.Rule rule : NAMES) {
      same = new Named(same, rule);
    }
    return isPhrase(field) ? same : new Named(same, JOINED);
  }

  @Override
  protected TokenStreamComponents wrapComponents(String field, TokenStreamComponents components) {
    TokenStream found = components.getTokenStream();
    TokenStream all = isSpelling(field) ? new Letters(new EnglishPossessiveFilter(found)) : new LowerCaseFilter(found);
    if (!isSpelling(field) && !isPhrase(field)) {
      all = new Pairs(all);
    }
    return new TokenStreamComponents(components.getSource(), all);
  }

  private static boolean isSpelling(String field) {
    return field.equals(IndexBuilder.SPELLINGS);
  }

  private static boolean isPhrase(String field) {
    return field.equals(IndexBuilder.PHRASES);
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

    /** Where the next of the pairs of a run is; -1 if the pairs are where the word before them is. */
    private int next = -1;

    Pairs(TokenStream words) {
      super(words);
    }

    @Override
    public boolean incrementToken() throws IOException {
      if (!pairs.isEmpty()) {
        String pair = pairs.remove();
        word.setEmpty().append(pair);
        if (next >= 0) {
          place.setOffset(next, next + pair.length());
          next = pair.offsetByCodePoints(0, 1) + next;
        }
        return true;
      }
      if (!input.incrementToken()) {
        return false;
      }
      String text = word.toString();
      next = -1;
      if (SIGNS.contains(kind.type())) {
        if (place.startOffset() == end) {
          pairs.add(before + text);
        }
        before = text;
        end = place.endOffset();
      } else if (RUNS.contains(kind.type())) {
        int[] signs = text.codePoints().toArray();
        next = place.endOffset() - place.startOffset() == text.length() ? place.startOffset() : -1;
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
