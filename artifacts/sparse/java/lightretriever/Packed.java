package lightretriever;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Collection;

/** The byte layout of everything that crosses between Python and Java: little-endian numbers, strict UTF-8. */
final class Packed {
  private Packed() {}

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

  static String text(byte[] utf8) {
    return text(utf8, 0, utf8.length);
  }

  /** Bytes that are not UTF-8 are refused: a replacement character would change a document silently. */
  static String text(byte[] utf8, int start, int end) {
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8, start, end - start)).toString();
    } catch (CharacterCodingException error) {
      throw new IllegalArgumentException("text is not valid UTF-8: " + error.getMessage(), error);
    }
  }
}
