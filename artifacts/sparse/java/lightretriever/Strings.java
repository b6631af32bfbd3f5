package lightretriever;

import java.nio.IntBuffer;

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
    return Packed.text(bytes, index == 0 ? 0 : ends.get(index - 1), ends.get(index));
  }
}
