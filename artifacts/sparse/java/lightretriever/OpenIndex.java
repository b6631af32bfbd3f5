package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.file.Files;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
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
import org.apache.lucene.index.StoredFields;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.BoostQuery;
import org.apache.lucene.search.BulkScorer;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.search.Scorer;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.search.TopScoreDocCollector;
import org.apache.lucene.search.Weight;
import org.apache.lucene.search.similarities.Similarity;
import org.apache.lucene.store.AlreadyClosedException;
import org.apache.lucene.store.IOContext;
import org.apache.lucene.store.IndexInput;
import org.apache.lucene.store.MMapDirectory;
import org.apache.lucene.util.Bits;
import org.apache.lucene.util.BytesRef;

/**
 * An index of at most one segment, open for reading by any number of threads. close() while a search is under way is
 * safe: the files are unmapped when the last search ends. The entry points are static for the reason given at
 * IndexBuilder.
 */
public final class OpenIndex {
  private static final Logger LUCENE = Logger.getLogger("org.apache.lucene");

  static {
    // A query has as many clauses as it has different tokens, and may be a whole page.
    IndexSearcher.setMaxClauseCount(Integer.MAX_VALUE);
  }

  private final MMapDirectory directory;
  private final DirectoryReader reader;
  // The names of the files beside Lucene's that belong to it. An index of words has none, and one of an older version others.
  private final Set<String> plain = new TreeSet<>();
  /** The largest impacts of the terms that were asked for, by id. */
  final ConcurrentHashMap<Integer, Integer> largest = new ConcurrentHashMap<>();

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
      findPlainFiles();
    } catch (RuntimeException | IOException error) {
      close(this);
      throw error;
    }
  }

  private void findPlainFiles() throws IOException {
    SegmentInfos commit = SegmentInfos.readLatestCommit(directory);
    plain.addAll(commit.getUserData().keySet());
    for (PlainFile file : List.of(PlainImpacts.FILE, PlainDocuments.FILE)) {
      if (plain.contains(file.name)) {
        file.check(directory, commit.info(0).info.getId());
      }
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

  /** Whether a file of this name lies beside Lucene's. */
  public static boolean hasPlain(OpenIndex index, byte[] name) {
    return index.plain.contains(Packed.text(name));
  }

  /** The texts of the given documents as they were added, packed by Packed.parts. */
  public static byte[] documents(OpenIndex index, byte[] ordinals) throws IOException {
    return index.reading(
        () -> {
          IntBuffer wanted = Packed.ints(ordinals);
          StoredFields stored = index.reader.storedFields();
          List<byte[]> texts = new ArrayList<>(wanted.limit());
          for (int i = 0; i < wanted.limit(); i++) {
            texts.add(PlainDocuments.text(stored, wanted.get(i)));
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
          Set<String> files = new TreeSet<>(SegmentInfos.readLatestCommit(index.directory).files(true));
          files.addAll(index.plain);
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

  /**
   * The best k for a weighted sum of terms: m int32 ordinals, m float32 scores; by score, then by ordinal. Where among is
   * given, only these documents; what they score does not depend on it.
   */
  byte[] best(Map<Term, Float> weights, Similarity similarity, int k, Bits among) throws IOException {
    IndexSearcher searcher = searcher(similarity);
    int limit = Math.max(1, Math.min(k, reader.maxDoc()));
    // Beyond the limit hits need not be counted, so Lucene may skip what can't enter the best k; these stay exact.
    TopScoreDocCollector collector = TopScoreDocCollector.create(limit, limit);
    Weight weight = searcher.createWeight(searcher.rewrite(query(weights)), collector.scoreMode(), 1f);
    for (LeafReaderContext leaf : reader.leaves()) {
      BulkScorer scorer = weight.bulkScorer(leaf);
      if (scorer != null) {
        scorer.score(collector.getLeafCollector(leaf), among);
      }
    }
    ScoreDoc[] hits = collector.topDocs().scoreDocs;
    ByteBuffer packed = ByteBuffer.allocate(8 * hits.length).order(ByteOrder.LITTLE_ENDIAN);
    for (ScoreDoc hit : hits) {
      packed.putInt(hit.doc);
    }
    for (ScoreDoc hit : hits) {
      packed.putFloat(hit.score);
    }
    return packed.array();
  }

  /** One float32 for each wanted ordinal, which ascend: the score that best() gives, 0 when no term matches. */
  byte[] scores(Map<Term, Float> weights, Similarity similarity, IntBuffer wanted) throws IOException {
    ByteBuffer packed = ByteBuffer.allocate(4 * wanted.limit()).order(ByteOrder.LITTLE_ENDIAN);
    IndexSearcher searcher = searcher(similarity);
    Weight weight = searcher.createWeight(searcher.rewrite(query(weights)), ScoreMode.COMPLETE, 1f);
    Scorer scorer = leaf() == null ? null : weight.scorer(reader.leaves().get(0));
    if (scorer != null) {
      DocIdSetIterator matches = scorer.iterator();
      for (int i = 0; i < wanted.limit(); i++) {
        int ordinal = wanted.get(i);
        if (matches.docID() < ordinal) {
          matches.advance(ordinal);
        }
        packed.putFloat(4 * i, matches.docID() == ordinal ? scorer.score() : 0f);
      }
    }
    return packed.array();
  }

  private IndexSearcher searcher(Similarity similarity) {
    IndexSearcher searcher = searcher();
    searcher.setSimilarity(similarity);
    return searcher;
  }

  /** For queries without scores. */
  IndexSearcher searcher() {
    IndexSearcher searcher = new IndexSearcher(reader);
    searcher.setQueryCache(null);
    return searcher;
  }

  private static BooleanQuery query(Map<Term, Float> weights) {
    BooleanQuery.Builder query = new BooleanQuery.Builder();
    weights.forEach(
        (term, weight) -> query.add(new BoostQuery(new TermQuery(term), weight), BooleanClause.Occur.SHOULD));
    return query.build();
  }

  /** The only segment, or null when the index has no documents. */
  LeafReader leaf() {
    return reader.leaves().isEmpty() ? null : reader.leaves().get(0).reader();
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
