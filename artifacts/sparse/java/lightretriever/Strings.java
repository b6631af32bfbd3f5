package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.IOFunction;

/**
 * Texts, or other parts, in one array, as they cross between Python and Java: how many they are, int32, where each one
 * ends, int32, counted from where the first one begins, and the parts one after the other.
 */
final class Strings {
  private final byte[] bytes;
  private final IntBuffer ends;

  Strings(byte[] packed) {
    IntBuffer numbers = Packed.ints(packed);
    this.bytes = packed;
    this.ends = numbers.slice(1, numbers.get(0));
  }

  static byte[] pack(List<byte[]> parts) {
    long size = Integer.BYTES * (1L + parts.size());
    for (byte[] part : parts) {
      size += part.length;
    }
    if (size > Integer.MAX_VALUE - 8) {
      throw new IllegalArgumentException(
          parts.size() + " texts have " + size + " bytes, more than one answer can hold (2 GiB)");
    }
    ByteBuffer packed = Packed.little(new byte[(int) size]).putInt(parts.size());
    int end = 0;
    for (byte[] part : parts) {
      end += part.length;
      packed.putInt(end);
    }
    parts.forEach(packed::put);
    return packed.array();
  }

  /** Packed texts, each of which became another one. */
  static byte[] map(byte[] packed, IOFunction<String, String> change) throws IOException {
    Strings texts = new Strings(packed);
    List<byte[]> changed = new ArrayList<>(texts.count());
    for (int i = 0; i < texts.count(); i++) {
      changed.add(change.apply(texts.get(i)).getBytes(StandardCharsets.UTF_8));
    }
    return pack(changed);
  }

  int count() {
    return ends.limit();
  }

  String get(int index) {
    BytesRef part = part(index);
    return Packed.text(part.bytes, part.offset, part.offset + part.length);
  }

  /** The texts from one on. */
  Iterator<String> from(int first) {
    return IntStream.range(first, count()).mapToObj(this::get).iterator();
  }

  /** The bytes of a text, refused as in get() unless they are UTF-8. */
  BytesRef utf8(int index) {
    get(index);
    return part(index);
  }

  private BytesRef part(int index) {
    int start = index == 0 ? 0 : ends.get(index - 1);
    return new BytesRef(bytes, Integer.BYTES * (1 + count()) + start, ends.get(index) - start);
  }
}
