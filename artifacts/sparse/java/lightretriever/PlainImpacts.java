package lightretriever;

import java.io.IOException;
import java.util.Arrays;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.store.IndexOutput;

/**
 * The impacts of all terms once more, as plain numbers: nothing is decoded. They are searched by
 * artifacts/cpp/impacts.hpp.
 *
 * The list of a frequent term has where the postings of each window of the documents end, counted from the list's first,
 * and then the postings, three bytes each: twelve bits are the document's place in its window, the twelve above them the
 * impact. That of a rare term, or one with a larger impact, has the documents, four bytes each, and then their impacts, two
 * each. Behind the lists stands, for every term by id, its id, its largest impact, the number of its documents and where its
 * list begins, negative for a rare one: each a column, after the number of terms; and then where this table begins.
 */
final class PlainImpacts {
  static final PlainFile FILE = new PlainFile("impacts.plain", "LightRetrieverPlainImpacts");
  private static final int WINDOW = 1 << 12;
  // A list with fewer postings for each window would be made of window ends for a good part.
  private static final int LEAST_IN_A_WINDOW = 4;
  private static final int MOST = (1 << 12) - 1;

  private final IndexOutput output;
  private final TermsEnum each;
  private final int terms;
  private final int[] ends;
  private PostingsEnum postings;

  private PlainImpacts(IndexOutput output, LeafReader leaf) throws IOException {
    this.output = output;
    each = ImpactList.terms(leaf);
    terms = each == null ? 0 : (int) leaf.terms(IndexBuilder.CONTENTS).size();
    ends = new int[(leaf.maxDoc() + WINDOW - 1) / WINDOW];
  }

  /** Writes the contents of the file for a segment's terms. */
  static void write(IndexOutput output, LeafReader leaf) throws IOException {
    new PlainImpacts(output, leaf).run();
  }

  private void run() throws IOException {
    long[][] table = new long[terms][];
    for (int i = 0; i < terms; i++) {
      int id = Integer.parseInt(each.next().utf8ToString());
      int largest = look();
      long start = output.getFilePointer();
      boolean frequent = largest <= MOST && ends[ends.length - 1] / LEAST_IN_A_WINDOW >= ends.length;
      if (frequent) {
        writeWindows();
      } else {
        writeDocuments();
      }
      table[i] = new long[] {id, largest, ends[ends.length - 1], frequent ? start : -start};
    }
    Arrays.sort(table, (one, other) -> Long.compare(one[0], other[0]));
    long start = output.getFilePointer();
    output.writeInt(terms);
    for (int column = 0; column < 3; column++) {
      for (long[] row : table) {
        output.writeInt((int) row[column]);
      }
    }
    for (long[] row : table) {
      output.writeLong(row[3]);
    }
    output.writeLong(start);
  }

  /** Finds where the windows' postings of the term end, and its largest impact. */
  private int look() throws IOException {
    Arrays.fill(ends, 0);
    int largest = 0;
    for (int document = first(); document != DocIdSetIterator.NO_MORE_DOCS; document = postings.nextDoc()) {
      ends[document / WINDOW]++;
      largest = Math.max(largest, postings.freq());
    }
    for (int window = 1; window < ends.length; window++) {
      ends[window] += ends[window - 1];
    }
    return largest;
  }

  private int first() throws IOException {
    postings = each.postings(postings, PostingsEnum.FREQS);
    return postings.nextDoc();
  }

  private void writeWindows() throws IOException {
    for (int end : ends) {
      output.writeInt(end);
    }
    for (int document = first(); document != DocIdSetIterator.NO_MORE_DOCS; document = postings.nextDoc()) {
      int posting = postings.freq() << 12 | document % WINDOW;
      output.writeShort((short) posting);
      output.writeByte((byte) (posting >>> 16));
    }
  }

  private void writeDocuments() throws IOException {
    for (int document = first(); document != DocIdSetIterator.NO_MORE_DOCS; document = postings.nextDoc()) {
      output.writeInt(document);
    }
    for (int document = first(); document != DocIdSetIterator.NO_MORE_DOCS; document = postings.nextDoc()) {
      output.writeShort((short) postings.freq());
    }
  }
}
