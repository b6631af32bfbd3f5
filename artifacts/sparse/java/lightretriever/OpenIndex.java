package lightretriever;

import java.io.IOException;
import java.nio.IntBuffer;
import java.nio.file.Files;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.lucene.codecs.CodecUtil;
import org.apache.lucene.index.BinaryDocValues;
import org.apache.lucene.index.CorruptIndexException;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.SegmentInfos;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.store.AlreadyClosedException;
import org.apache.lucene.store.IOContext;
import org.apache.lucene.store.IndexInput;
import org.apache.lucene.store.MMapDirectory;
import org.apache.lucene.util.BytesRef;

/**
 * An index of at most one segment, open for reading by any number of threads. close() while a search is under way is
 * safe: the files are unmapped when the last search ends. The entry points are static for the reason given at
 * IndexBuilder.
 */
public final class OpenIndex {
  private static final Logger LUCENE = Logger.getLogger("org.apache.lucene");

  static {
    // A query has as many clauses as it has different tokens, and may be a whole page. Conditions are bounded elsewhere.
    IndexSearcher.setMaxClauseCount(Integer.MAX_VALUE);
  }

  private final MMapDirectory directory;
  private final DirectoryReader reader;

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
    try {
      SegmentInfos commit = SegmentInfos.readLatestCommit(directory);
      if (PlainImpacts.belongTo(commit)) {
        PlainImpacts.check(directory, commit);
      }
    } catch (RuntimeException | IOException error) {
      close(this);
      throw error;
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

  /** The texts of the given documents as they were added, packed by Packed.parts. */
  public static byte[] documents(OpenIndex index, byte[] ordinals) throws IOException {
    return index.reading(
        () -> {
          IntBuffer wanted = Packed.ints(ordinals);
          List<byte[]> texts = new ArrayList<>(wanted.limit());
          for (int i = 0; i < wanted.limit(); i++) {
            texts.add(text(index.leaf(), wanted.get(i)));
          }
          return Packed.parts(texts);
        });
  }

  /** The ids of all documents in order, packed by Packed.parts. */
  public static byte[] ids(OpenIndex index) throws IOException {
    return index.reading(
        () -> {
          List<byte[]> ids = new ArrayList<>(index.reader.maxDoc());
          LeafReader leaf = index.leaf();
          if (leaf != null) {
            BinaryDocValues values = DocValues.getBinary(leaf, IndexBuilder.ID);
            while (values.nextDoc() != BinaryDocValues.NO_MORE_DOCS) {
              BytesRef id = BytesRef.deepCopyOf(values.binaryValue());
              ids.add(id.bytes);
            }
          }
          if (ids.size() != index.reader.maxDoc()) {
            throw new IllegalStateException(ids.size() + " of " + index.reader.maxDoc() + " documents have an id");
          }
          return Packed.parts(ids);
        });
  }

  /** The number of the document with this id, or -1. */
  public static int ordinal(OpenIndex index, byte[] id) throws IOException {
    return index.reading(
        () -> {
          LeafReader leaf = index.leaf();
          if (leaf == null) {
            return -1;
          }
          PostingsEnum found = leaf.postings(new Term(IndexBuilder.ID, new BytesRef(id)), PostingsEnum.NONE);
          return found == null ? -1 : found.nextDoc();
        });
  }

  /** Compares every file of the index with the checksum at its end; throws with the file's name. */
  public static void check(OpenIndex index) throws IOException {
    index.reading(
        () -> {
          SegmentInfos commit = SegmentInfos.readLatestCommit(index.directory);
          Set<String> files = new TreeSet<>(commit.files(true));
          if (PlainImpacts.belongTo(commit)) {
            files.add(PlainImpacts.FILE);
          }
          for (String file : files) {
            try (IndexInput input = index.directory.openInput(file, IOContext.READONCE)) {
              CodecUtil.checksumEntireFile(input);
            }
          }
          return null;
        });
  }

  public static void close(OpenIndex index) throws IOException {
    index.reader.close();
    index.directory.close();
  }

  /** Values must be asked for in ascending order, hence anew for each document. */
  private static byte[] text(LeafReader leaf, int document) throws IOException {
    BinaryDocValues values = DocValues.getBinary(leaf, IndexBuilder.RAW);
    if (!values.advanceExact(document)) {
      throw new IllegalStateException("document " + document + " has no value " + IndexBuilder.RAW);
    }
    return BytesRef.deepCopyOf(values.binaryValue()).bytes;
  }

  IndexSearcher searcher() {
    IndexSearcher searcher = new IndexSearcher(reader);
    searcher.setQueryCache(null);
    return searcher;
  }

  /** The only segment, or null when the index has no documents. */
  LeafReaderContext context() {
    return reader.leaves().isEmpty() ? null : reader.leaves().get(0);
  }

  /** The reader of the only segment, or null when the index has no documents. */
  LeafReader leaf() {
    LeafReaderContext only = context();
    return only == null ? null : only.reader();
  }

  /** Runs an action during which the files stay mapped. */
  <T> T reading(Action<T> action) throws IOException {
    if (!reader.tryIncRef()) {
      throw new AlreadyClosedException("the index is closed");
    }
    try {
      return action.run();
    } finally {
      reader.decRef();
    }
  }

  interface Action<T> {
    T run() throws IOException;
  }
}
