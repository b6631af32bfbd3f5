package lightretriever;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;

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
    CharsetDecoder decoder =
        StandardCharsets.UTF_8
            .newDecoder()
            .onMalformedInput(CodingErrorAction.REPORT)
            .onUnmappableCharacter(CodingErrorAction.REPORT);
    try {
      CharBuffer decoded = decoder.decode(ByteBuffer.wrap(utf8, start, end - start));
      return decoded.toString();
    } catch (CharacterCodingException error) {
      throw new IllegalArgumentException("text is not valid UTF-8: " + error.getMessage(), error);
    }
  }

  /** n parts as n int32 lengths, then the parts one after the other. */
  static byte[] parts(List<byte[]> parts) {
    long size = 4L * parts.size();
    for (byte[] part : parts) {
      size += part.length;
    }
    if (size > Integer.MAX_VALUE - 8) {
      throw new IllegalArgumentException(
          parts.size() + " texts have " + size + " bytes, more than one answer can hold (2 GiB)");
    }
    ByteBuffer packed = ByteBuffer.allocate((int) size).order(ByteOrder.LITTLE_ENDIAN);
    for (byte[] part : parts) {
      packed.putInt(part.length);
    }
    for (byte[] part : parts) {
      packed.put(part);
    }
    return packed.array();
  }

  /** How many parts there are, int32, then the parts as parts() packs them. */
  static byte[] counted(List<byte[]> parts) {
    byte[] packed = parts(parts);
    return little(new byte[Integer.BYTES + packed.length]).putInt(parts.size()).put(packed).array();
  }

  /** n texts that have a number each: n, the n numbers, int32, then the texts as parts() packs them. */
  static byte[] counts(List<byte[]> texts, Collection<Integer> numbers) {
    byte[] packed = parts(texts);
    ByteBuffer whole = little(new byte[Integer.BYTES * (1 + texts.size()) + packed.length]).putInt(texts.size());
    numbers.forEach(whole::putInt);
    return whole.put(packed).array();
  }
}
