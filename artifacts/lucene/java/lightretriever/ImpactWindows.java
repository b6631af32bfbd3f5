package lightretriever;

import java.io.Closeable;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import org.apache.lucene.codecs.CodecUtil;
import org.apache.lucene.index.CorruptIndexException;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.IOContext;
import org.apache.lucene.store.IndexInput;
import org.apache.lucene.store.IndexOutput;
import org.apache.lucene.store.RandomAccessInput;

/**
 * The impacts of frequent terms once more, in a file beside Lucene's, as plain numbers: nothing is decoded, and the
 * postings of a window of the documents are found by their number. Lucene's own header and footer stand around them.
 *
 * A list has where each window's postings end, counted from the list's first, and then the postings, three bytes each:
 * twelve bits are the document's place in its window, the twelve above them the impact. A term with a larger impact, like
 * a rare one, has no list. Behind the lists stands, for every term of the index by id, its largest impact and where its
 * list begins, 0 if it has none; and where this table begins.
 */
final class ImpactWindows implements Closeable {
  static final String FILE = "impacts.windows";
  static final int WINDOW = 1 << 12;
  private static final String CODEC = "LightRetrieverImpactWindows";
  private static final int VERSION = 0;
  // A list with fewer postings for each window would be made of window ends for a good part.
  private static final int LEAST_IN_A_WINDOW = 4;
  private static final int SIZE = 3;
  private static final int MOST = (1 << 12) - 1;
  private static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);

  private final IndexInput input;
  private final int windows;
  private final int[] ids;
  private final int[] largest;
  private final long[] starts;

  private ImpactWindows(IndexInput input, int documents) throws IOException {
    this.input = input;
    windows = windows(documents);
    input.seek(input.length() - CodecUtil.footerLength() - Long.BYTES);
    input.seek(input.readLong());
    int count = input.readInt();
    ids = new int[count];
    largest = new int[count];
    starts = new long[count];
    input.readInts(ids, 0, count);
    input.readInts(largest, 0, count);
    input.readLongs(starts, 0, count);
  }

  /** Opens the file of this segment's documents. */
  static ImpactWindows open(Directory directory, byte[] segment, int documents) throws IOException {
    IndexInput input = directory.openInput(FILE, IOContext.READ);
    try {
      CodecUtil.checkIndexHeader(input, CODEC, VERSION, VERSION, segment, "");
      CodecUtil.retrieveChecksum(input);
      return new ImpactWindows(input, documents);
    } catch (RuntimeException | IOException error) {
      input.close();
      throw new CorruptIndexException("not what was written: " + error.getMessage(), FILE, error);
    }
  }

  /** Writes the file for a segment's terms. */
  static void write(Directory directory, byte[] segment, LeafReader leaf) throws IOException {
    try (IndexOutput output = directory.createOutput(FILE, IOContext.DEFAULT)) {
      CodecUtil.writeIndexHeader(output, CODEC, VERSION, segment, "");
      new Writing(output, leaf).run();
      CodecUtil.writeFooter(output);
    }
    directory.sync(List.of(FILE));
  }

  @Override
  public void close() throws IOException {
    input.close();
  }

  /** The place of a term in the table; below 0 when no document has it. */
  int find(int id) {
    return Arrays.binarySearch(ids, id);
  }

  int largest(int place) {
    return largest[place];
  }

  /** Room for the postings of a window, and the byte that is read behind the last one. */
  static byte[] room() {
    return new byte[WINDOW * SIZE + 1];
  }

  /** Of postings as read, the one at this place, for slot() and impact(). */
  static int posting(byte[] postings, int place) {
    return (int) INT.get(postings, place * SIZE);
  }

  static int slot(int posting) {
    return posting & (WINDOW - 1);
  }

  static int impact(int posting) {
    return posting >>> 12 & MOST;
  }

  /** A reader for one thread. */
  Reader reader() throws IOException {
    return new Reader(input.clone(), input.randomAccessSlice(0, input.length()));
  }

  private static int windows(int documents) {
    return (documents + WINDOW - 1) / WINDOW;
  }

  /** Reads for one thread. */
  final class Reader {
    private final IndexInput input;
    private final RandomAccessInput random;

    private Reader(IndexInput input, RandomAccessInput random) {
      this.input = input;
      this.random = random;
    }

    /** The list of the term at this place; null if it has none. */
    Postings postings(int place) throws IOException {
      return starts[place] == 0 ? null : new Postings(this, starts[place]);
    }
  }

  /** The list of a term. */
  final class Postings {
    private final Reader reader;
    private final int[] bounds = new int[windows + 1];
    private final long start;

    private Postings(Reader reader, long start) throws IOException {
      this.reader = reader;
      reader.input.seek(start);
      reader.input.readInts(bounds, 1, windows);
      this.start = start + (long) windows * Integer.BYTES;
    }

    int count() {
      return bounds[windows];
    }

    /** Puts a window's postings where there is room for them; gives how many there are. */
    int read(int window, byte[] room) throws IOException {
      int first = bounds[window];
      int count = bounds[window + 1] - first;
      if (count > 0) {
        reader.input.seek(start + (long) first * SIZE);
        reader.input.readBytes(room, 0, count * SIZE);
      }
      return count;
    }

    /** The impact in a document, 0 when it lacks the term. */
    int impact(int document) throws IOException {
      int window = document / WINDOW;
      int wanted = document % WINDOW;
      int low = bounds[window];
      int high = bounds[window + 1] - 1;
      while (low <= high) {
        int middle = (low + high) >>> 1;
        int posting = reader.random.readInt(start + (long) middle * SIZE);
        int found = slot(posting);
        if (found < wanted) {
          low = middle + 1;
        } else if (found > wanted) {
          high = middle - 1;
        } else {
          return ImpactWindows.impact(posting);
        }
      }
      return 0;
    }
  }

  /** Writes what stands between header and footer. */
  private static final class Writing {
    private final IndexOutput output;
    private final TermsEnum each;
    private final int terms;
    private final int[] ends;
    private PostingsEnum postings;

    private Writing(IndexOutput output, LeafReader leaf) throws IOException {
      this.output = output;
      each = ImpactList.terms(leaf);
      terms = each == null ? 0 : (int) leaf.terms(IndexBuilder.CONTENTS).size();
      ends = new int[windows(leaf.maxDoc())];
    }

    private void run() throws IOException {
      long[][] table = new long[terms][];
      for (int i = 0; i < terms; i++) {
        int id = Integer.parseInt(each.next().utf8ToString());
        int largest = look();
        table[i] = new long[] {id, largest, largest <= MOST && frequent() ? list() : 0};
      }
      Arrays.sort(table, (one, other) -> Long.compare(one[0], other[0]));
      long start = output.getFilePointer();
      output.writeInt(terms);
      for (int column = 0; column < 2; column++) {
        for (long[] row : table) {
          output.writeInt((int) row[column]);
        }
      }
      for (long[] row : table) {
        output.writeLong(row[2]);
      }
      output.writeLong(start);
    }

    /** Finds where the windows' postings of the term end, and its largest impact. */
    private int look() throws IOException {
      postings = each.postings(postings, PostingsEnum.FREQS);
      Arrays.fill(ends, 0);
      int largest = 0;
      for (int document = postings.nextDoc(); document != DocIdSetIterator.NO_MORE_DOCS; document = postings.nextDoc()) {
        ends[document / WINDOW]++;
        largest = Math.max(largest, postings.freq());
      }
      for (int window = 1; window < ends.length; window++) {
        ends[window] += ends[window - 1];
      }
      return largest;
    }

    private boolean frequent() {
      return ends[ends.length - 1] / LEAST_IN_A_WINDOW >= ends.length;
    }

    private long list() throws IOException {
      long start = output.getFilePointer();
      for (int end : ends) {
        output.writeInt(end);
      }
      postings = each.postings(postings, PostingsEnum.FREQS);
      for (int document = postings.nextDoc(); document != DocIdSetIterator.NO_MORE_DOCS; document = postings.nextDoc()) {
        int posting = postings.freq() << 12 | document % WINDOW;
        output.writeShort((short) posting);
        output.writeByte((byte) (posting >>> 16));
      }
      return start;
    }
  }
}
