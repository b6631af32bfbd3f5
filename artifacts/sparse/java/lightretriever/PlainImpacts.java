package lightretriever;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import org.apache.lucene.codecs.CodecUtil;
import org.apache.lucene.index.CorruptIndexException;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.SegmentInfos;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.IOContext;
import org.apache.lucene.store.IndexInput;
import org.apache.lucene.store.IndexOutput;

/**
 * A file beside Lucene's own with the impacts of all terms once more, as plain numbers, so that nothing has to be decoded.
 * kernels/cpp/impacts.hpp searches it. Lucene's header and footer stand around its contents: it belongs to one segment, and
 * has a checksum.
 *
 * <p>The list of a frequent term has where the postings of each window of the documents end, counted from the list's first,
 * and then the postings, three bytes each: twelve bits are the document's place in its window, the twelve above them the
 * impact. The list of a rare term, or of one with a larger impact, has the documents, four bytes each, and then their
 * impacts, two bytes each. A table follows the lists: the number of terms and then, by ascending term, a column each of the
 * term's id, its largest impact, the number of its documents and the place of its list, negative for a rare term. The last
 * number is the place of this table.
 */
final class PlainImpacts {
  static final String FILE = "impacts.plain";
  private static final String CODEC = "LightRetrieverPlainImpacts";
  private static final int VERSION = 0;
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
    each = ImpactSearch.terms(leaf);
    terms = each == TermsEnum.EMPTY ? 0 : (int) leaf.terms(IndexBuilder.CONTENTS).size();
    ends = new int[(leaf.maxDoc() + WINDOW - 1) / WINDOW];
  }

  /** Whether the file belongs to a commit: whoever writes it names it there. */
  static boolean belongTo(SegmentInfos commit) {
    return commit.getUserData().containsKey(FILE);
  }

  /** CorruptIndexException if the file is not that of the commit's only segment. */
  static void check(Directory directory, SegmentInfos commit) throws IOException {
    try (IndexInput input = directory.openInput(FILE, IOContext.DEFAULT)) {
      CodecUtil.checkIndexHeader(input, CODEC, VERSION, VERSION, commit.info(0).info.getId(), "");
      CodecUtil.retrieveChecksum(input);
    } catch (RuntimeException | IOException error) {
      throw new CorruptIndexException("not what was written: " + error.getMessage(), FILE, error);
    }
  }

  /** Writes the file for the only segment of a commit. */
  static void write(Directory directory, SegmentInfos commit, LeafReader leaf) throws IOException {
    try (IndexOutput output = directory.createOutput(FILE, IOContext.DEFAULT)) {
      CodecUtil.writeIndexHeader(output, CODEC, VERSION, commit.info(0).info.getId(), "");
      new PlainImpacts(output, leaf).run();
      CodecUtil.writeFooter(output);
    }
    directory.sync(List.of(FILE));
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
