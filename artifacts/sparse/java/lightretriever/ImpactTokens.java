package lightretriever;

import java.io.IOException;
import java.nio.IntBuffer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.BytesTermAttribute;
import org.apache.lucene.analysis.tokenattributes.TermFrequencyAttribute;
import org.apache.lucene.util.BytesRef;

/**
 * One document's terms, each once, with its impact as the term frequency. Repeating a term as often as its impact
 * says, which is how a text analyzer would get the same index, costs a hundred times the tokens.
 */
final class ImpactTokens extends TokenStream {
  // Added first: it must be the one that answers for the term's bytes, not the frequency attribute's implementation.
  private final BytesTermAttribute term = addAttribute(BytesTermAttribute.class);
  private final TermFrequencyAttribute frequency = addAttribute(TermFrequencyAttribute.class);

  private BytesRef[] names;
  private IntBuffer terms;
  private IntBuffer impacts;
  private int next;
  private int end;

  /** The terms from start to end are places in names. */
  void set(BytesRef[] names, IntBuffer terms, IntBuffer impacts, int start, int end) {
    this.names = names;
    this.terms = terms;
    this.impacts = impacts;
    this.next = start;
    this.end = end;
  }

  @Override
  public void reset() throws IOException {
    super.reset();
    clearAttributes();
  }

  /** Attributes other than these two keep what reset() gave them, so they need no clearing for each token. */
  @Override
  public boolean incrementToken() {
    if (next >= end) {
      return false;
    }
    term.setBytesRef(names[terms.get(next)]);
    frequency.setTermFrequency(impacts.get(next));
    next++;
    return true;
  }
}
