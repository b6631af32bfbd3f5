package lightretriever;

import java.io.Reader;
import java.util.function.Function;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Writes a longer text in place of each match of a pattern, which begins where the letters and numbers before one of some
 * signs do.
 * Lucene's PatternReplaceCharFilter tries a pattern at every character, which takes longer than all of the analyzer.
 */
final class Named extends WholeText {
  private static final int LETTERS =
      1 << Character.UPPERCASE_LETTER
          | 1 << Character.LOWERCASE_LETTER
          | 1 << Character.TITLECASE_LETTER
          | 1 << Character.MODIFIER_LETTER
          | 1 << Character.OTHER_LETTER;
  private static final int NUMBERS =
      1 << Character.DECIMAL_DIGIT_NUMBER | 1 << Character.LETTER_NUMBER | 1 << Character.OTHER_NUMBER;
  private static final int MARKS =
      1 << Character.NON_SPACING_MARK | 1 << Character.COMBINING_SPACING_MARK | 1 << Character.ENCLOSING_MARK;

  /** Kinds of characters before a sign, for `Rule.before`. */
  static final int NOTHING = 0;

  static final int WORD = LETTERS | NUMBERS;
  static final int MARKED_WORD = WORD | MARKS;

  /** What a match has before one of the signs, as bits of Character.getType, and a longer text in its place. */
  record Rule(Pattern pattern, String signs, int before, Function<MatchResult, String> replacement) {}

  private final Rule rule;

  Named(Reader text, Rule rule) {
    super(text);
    this.rule = rule;
  }

  @Override
  CharSequence changed(String text) {
    StringBuilder made = new StringBuilder(text.length());
    Matcher matcher = rule.pattern.matcher(text).useTransparentBounds(true).useAnchoringBounds(false);
    int end = 0;
    for (int i = 0; i < text.length(); i++) {
      if (i < end || rule.signs.indexOf(text.charAt(i)) < 0) {
        continue;
      }
      int start = i;
      while (start > end && (rule.before >> Character.getType(text.codePointBefore(start)) & 1) == 1) {
        start -= Character.charCount(text.codePointBefore(start));
      }
      if (matcher.region(start, text.length()).lookingAt()) {
        made.append(text, end, start);
        end = matcher.end();
        int longer = made.length() + end - start;
        made.append(rule.replacement.apply(matcher));
        for (int j = longer; j < made.length(); j++) { // what is added stands before the last character of the match
          addOffCorrectMap(j, end - 1 - j);
        }
      }
    }
    return made.append(text, end, text.length());
  }
}
