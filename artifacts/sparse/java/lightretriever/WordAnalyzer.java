package lightretriever;

import io.anserini.analysis.DefaultEnglishAnalyzer;
import java.io.IOException;
import java.io.Reader;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.AnalyzerWrapper;
import org.apache.lucene.analysis.FilteringTokenFilter;
import org.apache.lucene.analysis.LowerCaseFilter;
import org.apache.lucene.analysis.TokenFilter;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.en.EnglishPossessiveFilter;
import org.apache.lucene.analysis.pattern.PatternReplaceCharFilter;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.analysis.tokenattributes.OffsetAttribute;
import org.apache.lucene.analysis.tokenattributes.TypeAttribute;

/**
 * The words of a language, as its Lucene analyzer makes them, and the further ones that artifacts/sparse/vocabulary.py names.
 * In the field for spellings, the words of Lucene's StandardAnalyzer that have only letters, at least two, without the
 * possessive. In the field for phrases, the words of the language without pairs of signs and words joined from parts, so
 * that what stands side by side in a text does so in the index.
 */
public final class WordAnalyzer extends AnalyzerWrapper {
  private static final Map<String, Supplier<Analyzer>> LANGUAGES =
      Map.ofEntries(
          Map.entry("arabic", org.apache.lucene.analysis.ar.ArabicAnalyzer::new),
          Map.entry("armenian", org.apache.lucene.analysis.hy.ArmenianAnalyzer::new),
          Map.entry("basque", org.apache.lucene.analysis.eu.BasqueAnalyzer::new),
          Map.entry("bengali", org.apache.lucene.analysis.bn.BengaliAnalyzer::new),
          Map.entry("bulgarian", org.apache.lucene.analysis.bg.BulgarianAnalyzer::new),
          Map.entry("catalan", org.apache.lucene.analysis.ca.CatalanAnalyzer::new),
          Map.entry("czech", org.apache.lucene.analysis.cz.CzechAnalyzer::new),
          Map.entry("danish", org.apache.lucene.analysis.da.DanishAnalyzer::new),
          Map.entry("dutch", org.apache.lucene.analysis.nl.DutchAnalyzer::new),
          Map.entry("estonian", org.apache.lucene.analysis.et.EstonianAnalyzer::new),
          Map.entry("finnish", org.apache.lucene.analysis.fi.FinnishAnalyzer::new),
          Map.entry("french", org.apache.lucene.analysis.fr.FrenchAnalyzer::new),
          Map.entry("galician", org.apache.lucene.analysis.gl.GalicianAnalyzer::new),
          Map.entry("german", org.apache.lucene.analysis.de.GermanAnalyzer::new),
          Map.entry("greek", org.apache.lucene.analysis.el.GreekAnalyzer::new),
          Map.entry("hindi", org.apache.lucene.analysis.hi.HindiAnalyzer::new),
          Map.entry("hungarian", org.apache.lucene.analysis.hu.HungarianAnalyzer::new),
          Map.entry("indonesian", org.apache.lucene.analysis.id.IndonesianAnalyzer::new),
          Map.entry("irish", org.apache.lucene.analysis.ga.IrishAnalyzer::new),
          Map.entry("italian", org.apache.lucene.analysis.it.ItalianAnalyzer::new),
          Map.entry("latvian", org.apache.lucene.analysis.lv.LatvianAnalyzer::new),
          Map.entry("lithuanian", org.apache.lucene.analysis.lt.LithuanianAnalyzer::new),
          Map.entry("norwegian", org.apache.lucene.analysis.no.NorwegianAnalyzer::new),
          Map.entry("persian", org.apache.lucene.analysis.fa.PersianAnalyzer::new),
          Map.entry("portuguese", org.apache.lucene.analysis.pt.PortugueseAnalyzer::new),
          Map.entry("romanian", org.apache.lucene.analysis.ro.RomanianAnalyzer::new),
          Map.entry("russian", org.apache.lucene.analysis.ru.RussianAnalyzer::new),
          Map.entry("serbian", org.apache.lucene.analysis.sr.SerbianAnalyzer::new),
          Map.entry("spanish", org.apache.lucene.analysis.es.SpanishAnalyzer::new),
          Map.entry("swedish", org.apache.lucene.analysis.sv.SwedishAnalyzer::new),
          Map.entry("tamil", org.apache.lucene.analysis.ta.TamilAnalyzer::new),
          Map.entry("telugu", org.apache.lucene.analysis.te.TeluguAnalyzer::new),
          Map.entry("turkish", org.apache.lucene.analysis.tr.TurkishAnalyzer::new),
          Map.entry("english", DefaultEnglishAnalyzer::newDefaultInstance),
          Map.entry("standard", StandardAnalyzer::new));

  /**
   * What is written in place of a match. Patterns begin with a sign, and look behind it for the name: of one that began with
   * the name, every character of a text would be tried, which takes longer than all of the analyzer.
   */
  private record Rule(Pattern pattern, String replacement) {
    Rule(String pattern, String replacement) {
      this(Pattern.compile(pattern), replacement);
    }

    Reader in(Reader text) {
      return new PatternReplaceCharFilter(pattern, replacement, text);
    }
  }

  /** Letters and numbers. U+10FFFF is none, but with it Java looks behind by characters, not by halves of them. */
  private static final String WORD = "\\p{L}\\p{N}\uDBFF\uDFFF";

  private static final String PART = "[\\p{IsLatin}\\p{IsGreek}\\p{IsCyrillic}\\p{M}\\p{N}]{1,20}+";
  private static final List<Rule> NAMES =
      List.of(
          new Rule("\\+\\+(?<=(?<![" + WORD + "])(\\p{L}{1,8})\\+\\+)(?![" + WORD + "+])", "++ $1plusplus"),
          new Rule("#(?<=(?<![" + WORD + "])(\\p{L}{1,8})#)(?![" + WORD + "#])", "# $1sharp"),
          new Rule("\\.(?<![" + WORD + ".)]\\.)(\\p{L}{2,20})(?![" + WORD + "])", "$0 dot$1"));
  private static final Rule JOINED =
      new Rule(
          "[-\u2010\u2011](?<=(?<![\\p{M}" + WORD + "])((?=\\p{L})" + PART + ").)(?=(" + PART + ")(?![\\p{M}" + WORD + "]))",
          " $1$2 ");

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

  /** The words of each text in their order, with a space between two, packed. */
  public static byte[] words(Analyzer analyzer, byte[] texts) throws IOException {
    return Packed.map(texts, text -> String.join(" ", words(analyzer, text)));
  }

  /** The words of a text in their order. */
  static List<String> words(Analyzer analyzer, String text) throws IOException {
    return words(analyzer, text, place -> {});
  }

  /** The words of a text, as above; where each one is, in UTF-16, is told to a consumer. */
  private static List<String> words(Analyzer analyzer, String text, Consumer<OffsetAttribute> places) throws IOException {
    List<String> words = new ArrayList<>();
    try (TokenStream tokens = analyzer.tokenStream(IndexBuilder.CONTENTS, text)) {
      CharTermAttribute word = tokens.addAttribute(CharTermAttribute.class);
      OffsetAttribute place = tokens.addAttribute(OffsetAttribute.class);
      tokens.reset();
      while (tokens.incrementToken()) {
        if (word.length() > 0) {
          words.add(word.toString());
          places.accept(place);
        }
      }
      tokens.end();
    }
    return words;
  }

  /**
   * The words of each text as in words(), and their places: two parts for each text, the words, and two int32 for each of
   * them, its first character and the one behind its last, in code points.
   */
  public static byte[] places(Analyzer analyzer, byte[] texts) throws IOException {
    Packed given = new Packed(texts);
    List<byte[]> found = new ArrayList<>(2 * given.count());
    for (int i = 0; i < given.count(); i++) {
      String text = given.text(i);
      int[] characters = new int[text.length() + 1];
      for (int j = 0; j < text.length(); j++) {
        characters[j + 1] = characters[j] + (Character.isLowSurrogate(text.charAt(j)) ? 0 : 1);
      }
      List<Integer> places = new ArrayList<>();
      List<String> words =
          words(
              analyzer,
              text,
              place -> {
                places.add(characters[Math.min(place.startOffset(), text.length())]);
                places.add(characters[Math.min(place.endOffset(), text.length())]);
              });
      found.add(Packed.utf8(String.join(" ", words)));
      found.add(Packed.ints(places));
    }
    return Packed.parts(found);
  }

  @Override
  protected Analyzer getWrappedAnalyzer(String field) {
    return field.equals(IndexBuilder.SPELLINGS) ? standard : words;
  }

  @Override
  protected Reader wrapReader(String field, Reader text) {
    Reader same = new SameSigns(text);
    if (field.equals(IndexBuilder.SPELLINGS)) {
      return same;
    }
    for (Rule rule : NAMES) {
      same = rule.in(same);
    }
    return field.equals(IndexBuilder.PHRASES) ? same : JOINED.in(same);
  }

  @Override
  protected TokenStreamComponents wrapComponents(String field, TokenStreamComponents components) {
    TokenStream words = components.getTokenStream();
    if (field.equals(IndexBuilder.SPELLINGS)) {
      words = new Letters(new EnglishPossessiveFilter(words));
    } else {
      words = new LowerCaseFilter(words);
      words = field.equals(IndexBuilder.PHRASES) ? words : new Pairs(words);
    }
    return new TokenStreamComponents(components.getSource(), words);
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
