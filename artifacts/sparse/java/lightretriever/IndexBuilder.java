package lightretriever;

import java.io.IOException;
import java.nio.IntBuffer;
import java.nio.file.Path;
import java.util.stream.IntStream;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.BytesTermAttribute;
import org.apache.lucene.analysis.tokenattributes.TermFrequencyAttribute;
import org.apache.lucene.document.BinaryDocValuesField;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.FieldType;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.ConcurrentMergeScheduler;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexOptions;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.LogDocMergePolicy;
import org.apache.lucene.index.SerialMergeScheduler;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.MMapDirectory;
import org.apache.lucene.store.NRTCachingDirectory;
import org.apache.lucene.util.BytesRef;

/**
 * Writes one index of one segment, documents in the order in which they came. The entry points are static and take the
 * builder, because the Python bridge keeps the receiver of an instance method in a place that all threads share.
 */
public final class IndexBuilder {
  static final String ID = "id";
  static final String RAW = "raw";
  static final String CONTENTS = "contents";
  static final String SPELLINGS = "spellings";
  static final String PHRASES = "phrases";

  private static final FieldType IMPACT_TYPE = indexed(IndexOptions.DOCS_AND_FREQS, true);
  private static final FieldType TEXT_TYPE = indexed(IndexOptions.DOCS_AND_FREQS, false);
  private static final FieldType SPELLING_TYPE = indexed(IndexOptions.DOCS, true);
  private static final FieldType PHRASE_TYPE = indexed(IndexOptions.DOCS_AND_FREQS_AND_POSITIONS, true);

  private static final double CACHED_MEGABYTES = 4;
  private static final int SMALL = 16;

  private final Directory directory;
  private final IndexWriter writer;
  private final boolean positions;
  private final Impacts impacts = new Impacts();
  // Written alone: the allocation must not be optimised away.
  @SuppressWarnings("unused")
  private volatile byte[] reserved;

  private IndexBuilder(
      Directory files, Analyzer analyzer, boolean positions, double bufferMegabytes, boolean later) throws IOException {
    // What one change adds is a segment of its own at first, and in memory.
    this.directory = later ? new NRTCachingDirectory(files, CACHED_MEGABYTES, bufferMegabytes) : files;
    this.positions = positions;
    // Merges only neighbouring segments, so that the order of the documents survives.
    LogDocMergePolicy merges = new LogDocMergePolicy();
    merges.setMergeFactor(later ? 2 : 1000); // none are merged before the last one
    merges.setMinMergeDocs(SMALL);
    merges.setNoCFSRatio(0.0);
    IndexWriterConfig config = new IndexWriterConfig(analyzer);
    config.setOpenMode(IndexWriterConfig.OpenMode.CREATE);
    config.setMergePolicy(merges);
    config.setMergeScheduler(later ? new ConcurrentMergeScheduler() : new SerialMergeScheduler());
    config.setRAMBufferSizeMB(bufferMegabytes);
    config.setUseCompoundFile(false);
    config.setCommitOnClose(false);
    writer = new IndexWriter(directory, config);
  }

  private static FieldType indexed(IndexOptions options, boolean omitNorms) {
    FieldType type = new FieldType();
    type.setTokenized(true);
    type.setIndexOptions(options);
    type.setOmitNorms(omitNorms);
    type.freeze();
    return type;
  }

  /**
   * The analyzer splits texts into words; null will do where none are given. With positions, the words of texts are indexed
   * with their places, too. A later one writes for behind(), to a directory of this process alone, and has few segments at
   * any time, because searches visit each.
   */
  public static IndexBuilder open(
      byte[] path, Analyzer analyzer, boolean positions, double bufferMegabytes, boolean later) throws IOException {
    return new IndexBuilder(
        new MMapDirectory(Path.of(Packed.text(path))), analyzer, positions, bufferMegabytes, later);
  }

  /** Merges all that was added up to now to one segment, while other threads add more. */
  public static void merge(IndexBuilder builder) throws IOException {
    builder.writer.forceMerge(1);
  }

  /** What was added up to now, behind the documents of an index. The caller closes it, at any time. */
  public static OpenIndex behind(IndexBuilder builder, OpenIndex index) throws IOException {
    try (DirectoryReader later = DirectoryReader.open(builder.writer)) {
      return new OpenIndex(index, later);
    }
  }

  /**
   * Throws OutOfMemoryError when an array of so many bytes does not fit into the heap. The bridge copies its arguments
   * without looking whether there was room, and would take the whole process down.
   */
  public static void reserve(IndexBuilder builder, int bytes) {
    builder.reserved = new byte[bytes];
    builder.reserved = null;
  }

  /**
   * Adds n documents. rowEnds holds, for each document, where its part of terms and impacts ends; a term is a place in
   * names. No document names a term twice. Values are those of declared fields, each behind its field: valueRows holds
   * where a document's part of them ends. Texts are there for all documents, to index their spellings, or for none.
   */
  public static void addImpacts(
      IndexBuilder builder,
      byte[] ids,
      byte[] raws,
      byte[] rowEnds,
      byte[] names,
      byte[] terms,
      byte[] impacts,
      byte[] valueRows,
      byte[] values,
      byte[] texts)
      throws IOException {
    Packed known = new Packed(values);
    IntBuffer knownRows = Packed.ints(valueRows);
    Packed identities = new Packed(ids);
    Packed spellings = new Packed(names);
    BytesRef[] vocabulary = IntStream.range(0, spellings.count()).mapToObj(spellings::checked).toArray(BytesRef[]::new);
    Packed jsons = new Packed(raws);
    Packed spelt = new Packed(texts);
    IntBuffer rows = Packed.ints(rowEnds);
    IntBuffer termIds = Packed.ints(terms);
    IntBuffer weights = Packed.ints(impacts);
    int start = 0;
    int value = 0;
    for (int i = 0; i < identities.count(); i++) {
      builder.impacts.set(vocabulary, termIds, weights, start, rows.get(i));
      start = rows.get(i);
      Document document = identified(identities.text(i));
      // A column of values is read several times as fast as stored fields, which are compressed in blocks.
      document.add(new BinaryDocValuesField(RAW, jsons.checked(i)));
      document.add(new Field(CONTENTS, builder.impacts, IMPACT_TYPE));
      if (spelt.count() > 0) {
        document.add(new Field(SPELLINGS, spelt.text(i), SPELLING_TYPE));
      }
      if (builder.positions) {
        document.add(new Field(PHRASES, spelt.text(i), PHRASE_TYPE));
      }
      for (; value < knownRows.get(i); value++) {
        document.add(Fields.field(known.text(2 * value), known.text(2 * value + 1)));
      }
      builder.writer.addDocument(document);
    }
  }

  /** Adds n documents whose words are indexed with their frequencies, for BM25; nothing but the id is stored. */
  public static void addTexts(IndexBuilder builder, byte[] ids, byte[] texts) throws IOException {
    Packed names = new Packed(ids);
    Packed contents = new Packed(texts);
    for (int i = 0; i < names.count(); i++) {
      Document document = identified(names.text(i));
      document.add(new Field(CONTENTS, contents.text(i), TEXT_TYPE));
      builder.writer.addDocument(document);
    }
  }

  /** Merges to one segment, commits and closes. Refuses an id that two documents have. */
  public static void commit(IndexBuilder builder) throws IOException {
    builder.writer.forceMerge(1);
    try (DirectoryReader reader = DirectoryReader.open(builder.writer)) {
      for (LeafReaderContext leaf : reader.leaves()) {
        TermsEnum each = leaf.reader().terms(ID).iterator();
        for (BytesRef id = each.next(); id != null; id = each.next()) {
          if (each.docFreq() > 1) {
            throw new IllegalArgumentException(
                "document id '" + id.utf8ToString() + "' was added " + each.docFreq() + " times");
          }
        }
      }
    }
    builder.writer.commit();
    builder.writer.close();
    builder.directory.close();
  }

  /** Forgets everything that was added, and removes the files. */
  public static void rollback(IndexBuilder builder) throws IOException {
    builder.writer.rollback();
    builder.directory.close();
  }

  private static Document identified(String id) {
    Document document = new Document();
    document.add(new StringField(ID, id, Field.Store.YES));
    // Anserini's searchers break ties by this column; ids() reads it too, which is faster than stored fields.
    document.add(new BinaryDocValuesField(ID, new BytesRef(id)));
    return document;
  }

  /**
   * One document's terms, each once, with its impact as the term frequency. Repeating a term as often as its impact says,
   * which is how a text analyzer would get the same index, costs a hundred times the tokens.
   */
  private static final class Impacts extends TokenStream {
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
}
