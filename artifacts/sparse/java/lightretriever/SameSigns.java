package lightretriever;

import java.io.IOException;
import java.io.Reader;
import java.io.StringReader;
import java.io.StringWriter;
import java.text.Normalizer;
import java.util.Set;
import org.apache.lucene.analysis.charfilter.BaseCharFilter;

/**
 * Reads spellings that look equal as one: a text in Unicode's form NFKC, with ' for the apostrophes ’, ‘ and ʼ, and without
 * signs that nobody sees inside a word: soft hyphens, marks of direction, selectors of a letter's variant, and, in scripts
 * that have spaces and no use for them, zero-width spaces and joiners. Places of words are those in the original text.
 */
final class SameSigns extends BaseCharFilter {
  private static final String APOSTROPHES = "\u2018\u2019\u02BC";

  /** Letters that NFKC would take apart, and their languages have as one: և of Armenian, ำ of Thai, ຳ of Lao. */
  private static final String LETTERS = "\u0587\u0E33\u0EB3";

  private static final Set<Byte> MARKS =
      Set.of(Character.NON_SPACING_MARK, Character.COMBINING_SPACING_MARK, Character.ENCLOSING_MARK);

  /** Scripts with spaces between words, in which a zero-width one means nothing. */
  private static final Set<Character.UnicodeScript> SPACED =
      Set.of(Character.UnicodeScript.LATIN, Character.UnicodeScript.GREEK, Character.UnicodeScript.CYRILLIC);

  private Reader changed;

  SameSigns(Reader text) {
    super(text);
  }

  @Override
  public int read(char[] buffer, int start, int length) throws IOException {
    if (changed == null) {
      StringWriter text = new StringWriter();
      input.transferTo(text);
      changed = new StringReader(changed(text.toString()));
    }
    return changed.read(buffer, start, length);
  }

  private String changed(String text) {
    if (text.chars().allMatch(sign -> sign < 0x80)) {
      return text;
    }
    StringBuilder made = new StringBuilder(text.length());
    int difference = 0;
    for (int start = 0; start < text.length(); ) {
      int end = start + Character.charCount(text.codePointAt(start));
      while (end < text.length() && (joinsBefore(text.codePointAt(end)) || dropped(text, end))) {
        end += Character.charCount(text.codePointAt(end));
      }
      StringBuilder part = new StringBuilder();
      for (int i = start; i < end; i += Character.charCount(text.codePointAt(i))) {
        if (!dropped(text, i)) {
          part.appendCodePoint(APOSTROPHES.indexOf(text.codePointAt(i)) >= 0 ? '\'' : text.codePointAt(i));
        }
      }
      made.append(Normalizer.normalize(part, LETTERS.indexOf(text.charAt(start)) >= 0 ? Normalizer.Form.NFC : Normalizer.Form.NFKC));
      int now = end - made.length();
      for (int i = 1; i <= difference - now; i++) { // the signs that one became stand where it begins
        addOffCorrectMap(made.length() - (difference - now) + i - 1, difference - i);
      }
      if (now > difference) {
        addOffCorrectMap(made.length(), now);
      }
      difference = now;
      start = end;
    }
    return made.toString();
  }

  /** Whether a sign may become one with the sign before it: marks, letters of Hangul, and the voiced marks of narrow kana. */
  private static boolean joinsBefore(int sign) {
    return MARKS.contains((byte) Character.getType(sign))
        || (sign >= 0x1160 && sign <= 0x11FF)
        || (sign >= 0x3131 && sign <= 0x318E)
        || (sign >= 0xD7B0 && sign <= 0xD7FB)
        || (sign >= 0xFF9E && sign <= 0xFFDC);
  }

  private static boolean dropped(String text, int place) {
    int sign = text.codePointAt(place);
    if (sign >= 0x200B && sign <= 0x200D) {
      return SPACED.contains(Character.UnicodeScript.of(seenBefore(text, place)));
    }
    if ((sign >= 0xFE00 && sign <= 0xFE0F) || (sign >= 0xE0100 && sign <= 0xE01EF)) {
      return Character.isLetter(seenBefore(text, place)); // an emoji is none
    }
    return "\u00AD\u034F\u200E\u200F\uFEFF".indexOf(sign) >= 0
        || (sign >= 0x202A && sign <= 0x202E)
        || (sign >= 0x2060 && sign <= 0x2064)
        || (sign >= 0x2066 && sign <= 0x206F);
  }

  /** The sign before a place that is neither invisible nor a mark on another; 0 for none. */
  private static int seenBefore(String text, int place) {
    while (place > 0) {
      int sign = text.codePointBefore(place);
      int type = Character.getType(sign);
      if (type != Character.FORMAT && type != Character.NON_SPACING_MARK) {
        return sign;
      }
      place -= Character.charCount(sign);
    }
    return 0;
  }

}
