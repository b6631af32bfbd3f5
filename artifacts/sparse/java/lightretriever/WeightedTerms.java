package lightretriever;

import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Map;
import java.util.TreeMap;

/** A query: token ids in ascending order, each once, with weights that may be below 0. */
final class WeightedTerms {
  final int[] ids;
  final float[] weights;

  private WeightedTerms(Map<Integer, Float> byId) {
    ids = new int[byId.size()];
    weights = new float[byId.size()];
    int i = 0;
    for (Map.Entry<Integer, Float> one : byId.entrySet()) {
      ids[i] = one.getKey();
      weights[i++] = one.getValue();
    }
  }

  /** A term that comes twice weighs the sum of its weights; one that weighs nothing is left out. */
  static WeightedTerms of(byte[] terms, byte[] weights) {
    IntBuffer ids = Packed.ints(terms);
    FloatBuffer values = Packed.floats(weights);
    Map<Integer, Float> byId = new TreeMap<>();
    for (int i = 0; i < ids.limit(); i++) {
      if (values.get(i) != 0) {
        byId.merge(ids.get(i), values.get(i), Float::sum);
      }
    }
    return new WeightedTerms(byId);
  }
}
