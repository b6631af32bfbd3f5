package lightretriever;

import java.io.IOException;
import java.io.Reader;
import java.text.Normalizer;
import org.apache.lucene.analysis.charfilter.BaseCharFilter;

/**
 * Reads spellings that look equal as one: a text in Unicode's form NFKC, without signs that nobody sees inside a word (soft
 * hyphens, zero-width spaces between letters of scripts with spaces, marks of direction), and with ' for the apostrophes ’,
 * ‘ and ʼ. Places of words are those in the original text.
 */
final class SameSigns extends BaseCharFilter {
  private char[] read;
  private int next;

  SameSigns(Reader text) {
    super(text);
  }

  @Override
  public int read(char[] buffer, int start, int length) throws IOException {
    if (read == null) {
      read = normalised(whole());
    }
    if (next == read.length) {
      return -1;
    }
    int count = Math.min(length, read.length - next);
    System.arraycopy(read, next, buffer, start, count);
    next += count;
    return count;
  }

  private String whole() throws IOException {
    StringBuilder text = new StringBuilder();
    char[] part = new char[8192];
    for (int count = input.read(part); count >= 0; count = input.read(part)) {
      text.append(part, 0, count);
    }
    return text.toString();
  }

  private char[] normalised(String text) {
    if (text.chars().allMatch(sign -> sign < 0x80)) {
      return text.toCharArray();
    }
    StringBuilder made = new StringBuilder(text.length());
    int difference = 0;
    for (int start = 0; start < text.length(); ) {
      int end = start + Character.charCount(text.codePointAt(start));
      while (end < text.length() && (joinsBefore(text.codePointAt(end)) || dropped(text, end))) {
        end += Character.charCount(text.codePointAt(end));
      }
      StringBuilder part = new StringBuilder();
      for (int i = start; i < end; i++) {
        if (!dropped(text, i)) {
          part.append(apostrophe(text.charAt(i)) ? '\'' : text.charAt(i));
        }
      }
      made.append(Normalizer.normalize(part, isLetter(text.charAt(start)) ? Normalizer.Form.NFC : Normalizer.Form.NFKC));
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
    char[] signs = new char[made.length()];
    made.getChars(0, signs.length, signs, 0);
    return signs;
  }

  /** Whether a sign may become one with the sign before it. */
  private static boolean joinsBefore(int sign) {
    switch (Character.getType(sign)) {
      case Character.NON_SPACING_MARK:
      case Character.COMBINING_SPACING_MARK:
      case Character.ENCLOSING_MARK:
        return true;
      default: // letters of Hangul, and the voiced marks of narrow kana
        return (sign >= 0x1160 && sign <= 0x11FF)
            || (sign >= 0x3131 && sign <= 0x318E)
            || (sign >= 0xD7B0 && sign <= 0xD7FB)
            || (sign >= 0xFF9E && sign <= 0xFFDC);
    }
  }

  private static boolean dropped(String text, int place) {
    char sign = text.charAt(place);
    if (sign == 0x200B) {
      return place > 0 && hasSpaces(text.codePointBefore(place));
    }
    return sign == 0xAD
        || sign == 0x200E
        || sign == 0x200F
        || (sign >= 0x202A && sign <= 0x202E)
        || sign == 0x2060
        || (sign >= 0x2066 && sign <= 0x2069)
        || sign == 0xFEFF;
  }

  /** Whether a sign is of a script with spaces between words, in which a zero-width one parts no words. */
  private static boolean hasSpaces(int sign) {
    Character.UnicodeScript script = Character.UnicodeScript.of(sign);
    return script == Character.UnicodeScript.LATIN
        || script == Character.UnicodeScript.GREEK
        || script == Character.UnicodeScript.CYRILLIC;
  }

  /** Whether NFKC would take a letter apart that its language has as one: և of Armenian, ำ of Thai, ຳ of Lao. */
  private static boolean isLetter(char sign) {
    return sign == 0x587 || sign == 0xE33 || sign == 0xEB3;
  }

  private static boolean apostrophe(int sign) {
    return sign == 0x2018 || sign == 0x2019 || sign == 0x2BC;
  }
}
