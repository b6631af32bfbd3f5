package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.IOFunction;

/**
 * The byte layout of everything that crosses between Python and Java: little-endian numbers, strict UTF-8. Texts, or other
 * parts, in one array are how many they are, int32, where each one ends, int32, counted from where the first one begins, and
 * the parts one after the other.
 */
final class Packed {
  private final byte[] bytes;
  private final IntBuffer ends;

  /** The parts of an array. */
  Packed(byte[] packed) {
    IntBuffer numbers = ints(packed);
    this.bytes = packed;
    this.ends = numbers.slice(1, numbers.get(0));
  }

  static byte[] parts(List<byte[]> parts) {
    long size = Integer.BYTES * (1L + parts.size());
    for (byte[] part : parts) {
      size += part.length;
    }
    if (size > Integer.MAX_VALUE - 8) {
      throw new IllegalArgumentException(
          parts.size() + " texts have " + size + " bytes, more than one answer can hold (2 GiB)");
    }
    ByteBuffer packed = little(new byte[(int) size]).putInt(parts.size());
    int end = 0;
    for (byte[] part : parts) {
      end += part.length;
      packed.putInt(end);
    }
    parts.forEach(packed::put);
    return packed.array();
  }

  /** Texts, and behind them an int32 of each, in one part. */
  static byte[] counts(Map<String, Integer> counts) {
    List<byte[]> parts = new ArrayList<>();
    counts.keySet().forEach(text -> parts.add(utf8(text)));
    parts.add(ints(counts.values()));
    return parts(parts);
  }

  /** Packed texts, each of which became another one. */
  static byte[] map(byte[] packed, IOFunction<String, String> change) throws IOException {
    Packed texts = new Packed(packed);
    List<byte[]> changed = new ArrayList<>(texts.count());
    for (int i = 0; i < texts.count(); i++) {
      changed.add(utf8(change.apply(texts.text(i))));
    }
    return parts(changed);
  }

  int count() {
    return ends.limit();
  }

  String text(int index) {
    BytesRef part = part(index);
    return text(part.bytes, part.offset, part.length);
  }

  /** The texts from one on. */
  Iterator<String> from(int first) {
    return IntStream.range(first, count()).mapToObj(this::text).iterator();
  }

  /** The bytes of a text, refused as in text() unless they are UTF-8. */
  BytesRef checked(int index) {
    text(index);
    return part(index);
  }

  private BytesRef part(int index) {
    int start = index == 0 ? 0 : ends.get(index - 1);
    return new BytesRef(bytes, Integer.BYTES * (1 + count()) + start, ends.get(index) - start);
  }

  static IntBuffer ints(byte[] packed) {
    return little(packed).asIntBuffer();
  }

  static FloatBuffer floats(byte[] packed) {
    return little(packed).asFloatBuffer();
  }

  static byte[] ints(int[] numbers) {
    byte[] packed = new byte[Integer.BYTES * numbers.length];
    ints(packed).put(numbers);
    return packed;
  }

  static byte[] ints(Collection<Integer> numbers) {
    return ints(numbers.stream().mapToInt(Integer::intValue).toArray());
  }

  static byte[] floats(Collection<Float> numbers) {
    byte[] packed = new byte[Float.BYTES * numbers.size()];
    FloatBuffer values = floats(packed);
    numbers.forEach(values::put);
    return packed;
  }

  static ByteBuffer little(byte[] packed) {
    return ByteBuffer.wrap(packed).order(ByteOrder.LITTLE_ENDIAN);
  }

  static byte[] utf8(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  static String text(byte[] utf8) {
    return text(utf8, 0, utf8.length);
  }

  /** Bytes that are not UTF-8 are refused: a replacement character would change a document silently. */
  private static String text(byte[] utf8, int start, int length) {
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8, start, length)).toString();
    } catch (CharacterCodingException error) {
      throw new IllegalArgumentException("text is not valid UTF-8: " + error.getMessage(), error);
    }
  }
}
