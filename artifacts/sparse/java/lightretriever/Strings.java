package lightretriever;

import java.io.ByteArrayOutputStream;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import org.apache.lucene.util.BytesRef;

/** Texts packed one after the other, with where each one ends. */
final class Strings {
  private final byte[] bytes;
  private final IntBuffer ends;

  Strings(byte[] bytes, byte[] ends) {
    this.bytes = bytes;
    this.ends = Packed.ints(ends);
  }

  private Strings(byte[] bytes, IntBuffer ends) {
    this.bytes = bytes;
    this.ends = ends;
  }

  static Strings of(Collection<String> texts) {
    byte[][] packed = texts.stream().map(text -> text.getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
    int[] ends = new int[packed.length];
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    for (int i = 0; i < packed.length; i++) {
      bytes.writeBytes(packed[i]);
      ends[i] = bytes.size();
    }
    return new Strings(bytes.toByteArray(), IntBuffer.wrap(ends));
  }

  int count() {
    return ends.limit();
  }

  Strings first(int count) {
    return new Strings(bytes, ends.slice(0, count));
  }

  String get(int index) {
    return Packed.text(bytes, start(index), ends.get(index));
  }

  /** The bytes of a text, refused as in get() unless they are UTF-8. */
  BytesRef utf8(int index) {
    get(index);
    return new BytesRef(bytes, start(index), ends.get(index) - start(index));
  }

  private int start(int index) {
    return index == 0 ? 0 : ends.get(index - 1);
  }
}
