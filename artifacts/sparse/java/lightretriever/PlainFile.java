package lightretriever;

import java.io.IOException;
import java.util.List;
import org.apache.lucene.codecs.CodecUtil;
import org.apache.lucene.index.CorruptIndexException;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.IOContext;
import org.apache.lucene.store.IndexInput;
import org.apache.lucene.store.IndexOutput;

/**
 * A file beside Lucene's own that has some of its contents once more, as plain numbers and texts, to be read outside of
 * Java. Lucene's own header and footer stand around them, so it belongs to one segment and has a checksum; its name stands
 * in the commit.
 */
final class PlainFile {
  private static final int VERSION = 0;
  final String name;
  private final String codec;

  PlainFile(String name, String codec) {
    this.name = name;
    this.codec = codec;
  }

  /** CorruptIndexException if the file is not this segment's. */
  void check(Directory directory, byte[] segment) throws IOException {
    try (IndexInput input = directory.openInput(name, IOContext.READ)) {
      CodecUtil.checkIndexHeader(input, codec, VERSION, VERSION, segment, "");
      CodecUtil.retrieveChecksum(input);
    } catch (RuntimeException | IOException error) {
      throw new CorruptIndexException("not what was written: " + error.getMessage(), name, error);
    }
  }

  void write(Directory directory, byte[] segment, Contents contents) throws IOException {
    try (IndexOutput output = directory.createOutput(name, IOContext.DEFAULT)) {
      CodecUtil.writeIndexHeader(output, codec, VERSION, segment, "");
      contents.write(output);
      CodecUtil.writeFooter(output);
    }
    directory.sync(List.of(name));
  }

  interface Contents {
    void write(IndexOutput output) throws IOException;
  }
}
