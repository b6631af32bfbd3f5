package lightretriever;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.lucene.index.FieldInfo;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.StoredFieldVisitor;
import org.apache.lucene.index.StoredFields;
import org.apache.lucene.store.IndexOutput;
import org.apache.lucene.util.packed.PackedInts;
import org.apache.lucene.util.packed.PackedLongValues;

/**
 * The stored texts of all documents once more, not compressed: one behind the other, then where each begins, and where the
 * last one ends, eight bytes each; and then where this table begins. It is read by artifacts/cpp/texts.hpp.
 */
final class PlainDocuments {
  static final PlainFile FILE = new PlainFile("documents.plain", "LightRetrieverPlainDocuments");

  private PlainDocuments() {}

  /** Writes the contents of the file for a segment's documents. */
  static void write(IndexOutput output, LeafReader leaf) throws IOException {
    StoredFields stored = leaf.storedFields();
    PackedLongValues.Builder sizes = PackedLongValues.packedBuilder(PackedInts.COMPACT);
    long start = output.getFilePointer();
    for (int document = 0; document < leaf.maxDoc(); document++) {
      byte[] text = text(stored, document);
      output.writeBytes(text, text.length);
      sizes.add(text.length);
    }
    long table = output.getFilePointer();
    output.writeLong(start);
    PackedLongValues.Iterator each = sizes.build().iterator();
    while (each.hasNext()) {
      start += each.next();
      output.writeLong(start);
    }
    output.writeLong(table);
  }

  /** The text of a document as it was added. */
  static byte[] text(StoredFields stored, int document) throws IOException {
    RawText raw = new RawText();
    stored.document(document, raw);
    if (raw.text == null) {
      throw new IllegalStateException("document " + document + " has no stored field " + IndexBuilder.RAW);
    }
    return raw.text.getBytes(StandardCharsets.UTF_8);
  }

  private static final class RawText extends StoredFieldVisitor {
    private String text;

    @Override
    public Status needsField(FieldInfo field) {
      return field.name.equals(IndexBuilder.RAW) ? Status.YES : Status.NO;
    }

    @Override
    public void stringField(FieldInfo field, String value) {
      text = value;
    }
  }
}
