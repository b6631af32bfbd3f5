package lightretriever;

import java.nio.IntBuffer;
import org.apache.lucene.util.BytesRef;

/** Texts packed one after the other, with where each one ends. */
final class Strings {
  private final byte[] bytes;
  private final IntBuffer ends;

  Strings(byte[] bytes, byte[] ends) {
    this.bytes = bytes;
    this.ends = Packed.ints(ends);
  }

  int count() {
    return ends.limit();
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
