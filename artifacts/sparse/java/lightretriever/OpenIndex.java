package lightretriever;

import java.io.IOException;
import java.nio.IntBuffer;
import java.nio.file.Files;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CancellationException;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.lucene.codecs.CodecUtil;
import org.apache.lucene.index.BinaryDocValues;
import org.apache.lucene.index.CorruptIndexException;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexReader;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.MultiDocValues;
import org.apache.lucene.index.MultiReader;
import org.apache.lucene.index.MultiTerms;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.SegmentInfos;
import org.apache.lucene.index.Term;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.store.AlreadyClosedException;
import org.apache.lucene.store.IOContext;
import org.apache.lucene.store.IndexInput;
import org.apache.lucene.store.MMapDirectory;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.IOSupplier;

/**
 * An index open for reading by any number of threads: one of at most one segment, or such a one with documents behind it
 * that were written later. close() while a search is under way is safe: the files are unmapped when the last search ends.
 * The entry points are static for the reason given at IndexBuilder.
 */
public final class OpenIndex {
  /** Bytes of documents that an answer has before it ends with the next one. */
  private static final long READ_AT_ONCE = 8 << 20;

  /** Documents between two looks at the clock. */
  static final int WINDOW = 1 << 16;

  private static final Logger LUCENE = Logger.getLogger("org.apache.lucene");

  static {
    // A query has as many clauses as it has different tokens, and may be a whole page. Conditions are bounded elsewhere.
    IndexSearcher.setMaxClauseCount(Integer.MAX_VALUE);
  }

  // Null for an index with later documents: the files are those of the first.
  private final MMapDirectory directory;
  private final IndexReader reader;

  /** The documents of an index, and behind them those of another reader, whose number the first one continues. */
  OpenIndex(OpenIndex first, DirectoryReader later) throws IOException {
    directory = null;
    reader = new MultiReader(new IndexReader[] {first.reader, later}, false);
  }

  private OpenIndex(Path path) throws IOException {
    directory = new MMapDirectory(path);
    reader = DirectoryReader.open(directory);
    if (reader.leaves().size() > 1 || reader.hasDeletions()) {
      int segments = reader.leaves().size();
      int deleted = reader.numDeletedDocs();
      close(this);
      throw new CorruptIndexException(
          "expected one segment without deletions, found " + segments + " with " + deleted + " deletions",
          path.toString());
    }
  }

  /** Lucene says at start-up which of the JVM's features it uses; that is no line for a service's log. */
  public static void quiet() {
    LUCENE.setLevel(Level.SEVERE);
  }

  public static OpenIndex open(byte[] path) throws IOException {
    Path directory = Path.of(Packed.text(path));
    // Lucene would make the directory.
    if (!Files.isDirectory(directory)) {
      throw new NotDirectoryException(directory.toString());
    }
    return new OpenIndex(directory);
  }

  public static int count(OpenIndex index) {
    return index.reader.maxDoc();
  }

  /**
   * The JSON of the first of some documents, whose numbers ascend, packed: up to some MiB, and at least one. Those
   * behind are to be asked for again.
   */
  public static byte[] documents(OpenIndex index, byte[] ordinals) throws IOException {
    return index.reading(
        () -> {
          IntBuffer wanted = Packed.ints(ordinals);
          List<byte[]> texts = new ArrayList<>(wanted.limit());
          // A reader of values has a buffer for the largest document, so one reads all that are asked for.
          BinaryDocValues values = wanted.limit() == 0 ? null : MultiDocValues.getBinaryValues(index.reader, IndexBuilder.RAW);
          long size = 0;
          while (texts.size() < wanted.limit() && size < READ_AT_ONCE) {
            byte[] text = value(values, wanted.get(texts.size()));
            size += text.length;
            texts.add(text);
          }
          return Packed.parts(texts);
        });
  }

  /** The ids of so many documents from the first on, in order, packed. */
  public static byte[] ids(OpenIndex index, int first, int count) throws IOException {
    return index.reading(
        () -> {
          List<byte[]> ids = new ArrayList<>(count);
          BinaryDocValues values = MultiDocValues.getBinaryValues(index.reader, IndexBuilder.ID);
          for (int document = first; document < first + count; document++) {
            ids.add(value(values, document));
          }
          return Packed.parts(ids);
        });
  }

  /** The number of the last document with each id, int32, or -1. */
  public static byte[] ordinals(OpenIndex index, byte[] ids) throws IOException {
    Packed wanted = new Packed(ids);
    return index.reading(
        () -> {
          int[] found = new int[wanted.count()];
          TermsEnum each = index.eachTerm(IndexBuilder.ID);
          PostingsEnum postings = null;
          for (int i = 0; i < wanted.count(); i++) {
            int last = -1;
            if (each.seekExact(wanted.checked(i))) {
              postings = each.postings(postings, PostingsEnum.NONE);
              for (int next = postings.nextDoc(); next != DocIdSetIterator.NO_MORE_DOCS; next = postings.nextDoc()) {
                last = next;
              }
            }
            found[i] = last;
          }
          return Packed.ints(found);
        });
  }

  /** Compares every file of the index with the checksum at its end; throws with the file's name. */
  public static void check(OpenIndex index) throws IOException {
    index.reading(
        () -> {
          for (String file : new TreeSet<>(SegmentInfos.readLatestCommit(index.directory).files(true))) {
            try (IndexInput input = index.directory.openInput(file, IOContext.READONCE)) {
              CodecUtil.checksumEntireFile(input);
            }
          }
          return null;
        });
  }

  public static void close(OpenIndex index) throws IOException {
    index.reader.close();
    if (index.directory != null) {
      index.directory.close();
    }
  }

  private static byte[] value(BinaryDocValues values, int document) throws IOException {
    if (values == null || !values.advanceExact(document)) {
      throw new IllegalStateException("document " + document + " has no id or no JSON");
    }
    return BytesRef.deepCopyOf(values.binaryValue()).bytes;
  }

  IndexSearcher searcher() {
    IndexSearcher searcher = new IndexSearcher(reader);
    searcher.setQueryCache(null);
    return searcher;
  }

  /** The segments in the order of their documents; none when there are no documents. */
  List<LeafReaderContext> segments() {
    return reader.leaves();
  }

  /** The terms of a field in all segments, or null when no document has the field. */
  Terms terms(String field) throws IOException {
    return MultiTerms.getTerms(reader, field);
  }

  /** The same, one by one. */
  TermsEnum eachTerm(String field) throws IOException {
    Terms terms = terms(field);
    return terms == null ? TermsEnum.EMPTY : terms.iterator();
  }

  /** In how many documents a term is. */
  int frequency(Term term) throws IOException {
    return reader.docFreq(term);
  }

  /** Throws when System.nanoTime() is past a deadline; to be asked every so many documents. */
  static void throwAfter(long deadline) {
    if (System.nanoTime() - deadline >= 0) {
      throw new CancellationException("the search took longer than it may");
    }
  }

  /** Runs an action during which the files stay mapped. */
  <T> T reading(IOSupplier<T> action) throws IOException {
    if (!reader.tryIncRef()) {
      throw new AlreadyClosedException("the index is closed");
    }
    try {
      return action.get();
    } finally {
      reader.decRef();
    }
  }
}
