package lightretriever;

import java.io.IOException;
import java.io.Reader;
import org.apache.lucene.analysis.charfilter.BaseCharFilter;

/** Reads a text whole, and gives it changed. */
abstract class WholeText extends BaseCharFilter {
  private char[] read;
  private int next;

  WholeText(Reader text) {
    super(text);
  }

  /** The changed text; addOffCorrectMap is told where its characters were. */
  abstract CharSequence changed(String text);

  @Override
  public int read(char[] buffer, int start, int length) throws IOException {
    if (read == null) {
      read = changed(whole()).toString().toCharArray();
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
}
