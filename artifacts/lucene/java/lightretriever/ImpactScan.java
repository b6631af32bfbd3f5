package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.util.LongHeap;

/**
 * The best documents of a weighted query, by adding up all of its postings: window by window of the documents, and in a
 * window term by term. Learned impacts give a query's terms posting lists of thousands of documents and flat bounds, of
 * which Lucene's own scorers, made to skip, skip little and ask a lot for every posting.
 */
final class ImpactScan {
  private static final int WINDOW = 4096;
  // Products of a weight with smaller impacts are looked up: turning numbers of one kind into another, twice for every
  // posting, costs as much as adding them up.
  private static final int COMMON = 512;

  private final double[] sums = new double[WINDOW];
  // Documents that scored enough after one of the terms; those that score enough in the end are among them.
  private final long[] promising = new long[WINDOW / Long.SIZE];
  private final LongHeap best;
  private final int k;
  private final long[] among;
  // What a document must score more than. One that scores as much as the last of the best k comes after it.
  private float least = 0;

  private ImpactScan(int k, long[] among) {
    this.k = k;
    this.among = among;
    best = new LongHeap(k);
  }

  /**
   * The best k documents that score above 0, packed as OpenIndex.best says. Lists stand before their first document; null is an empty one.
   * Where among is given, it has a bit for every document that may be found.
   */
  static byte[] best(PostingsEnum[] lists, float[] weights, int k, long[] among) throws IOException {
    ImpactScan scan = new ImpactScan(k, among);
    scan.all(lists, weights);
    return scan.packed();
  }

  private void all(PostingsEnum[] lists, float[] weights) throws IOException {
    int[] next = new int[lists.length];
    double[][] products = new double[lists.length][];
    for (int i = 0; i < lists.length; i++) {
      products[i] = products(weights[i]);
      next[i] = lists[i] == null ? DocIdSetIterator.NO_MORE_DOCS : lists[i].nextDoc();
    }
    for (int first = least(next); first != DocIdSetIterator.NO_MORE_DOCS; first = least(next)) {
      int base = first & -Long.SIZE; // so that a word of promising is a word of among
      int end = base + WINDOW;
      for (int i = 0; i < lists.length; i++) {
        if (next[i] < end) {
          next[i] = add(lists[i], weights[i], products[i], next[i], base, end);
        }
      }
      collect(base);
    }
  }

  private static int least(int[] documents) {
    int least = DocIdSetIterator.NO_MORE_DOCS;
    for (int document : documents) {
      least = Math.min(least, document);
    }
    return least;
  }

  /** A weight times every common impact: a float product, as in ImpactSearch.scores, in a double. */
  private static double[] products(float weight) {
    double[] products = new double[COMMON];
    for (int impact = 0; impact < COMMON; impact++) {
      products[impact] = weight * impact;
    }
    return products;
  }

  /** Adds a list's products from `document`, which is below `end`, on. Returns the first document not below `end`. */
  private int add(PostingsEnum list, float weight, double[] products, int document, int base, int end)
      throws IOException {
    double[] sums = this.sums; // looked up once, not for every posting
    long[] promising = this.promising;
    double least = this.least;
    do {
      int slot = document - base;
      int impact = list.freq();
      double sum = sums[slot] + (impact < COMMON ? products[impact] : weight * impact);
      sums[slot] = sum;
      if (sum > least) {
        promising[slot >>> 6] |= 1L << slot;
      }
      document = list.nextDoc();
    } while (document < end);
    return document;
  }

  private void collect(int base) {
    for (int word = 0; word < promising.length; word++) {
      long bits = promising[word];
      promising[word] = 0;
      while (bits != 0) {
        int slot = (word << 6) + Long.numberOfTrailingZeros(bits);
        bits &= bits - 1;
        float score = (float) sums[slot];
        if (score > least && (among == null || (among[(base + slot) >>> 6] >>> slot & 1) != 0)) {
          propose(base + slot, score);
        }
      }
    }
    Arrays.fill(sums, 0);
  }

  /** The larger of two keys is the better hit: by score, which is above 0, and among equals the first document. */
  private void propose(int document, float score) {
    long key = ((long) Float.floatToRawIntBits(score) << 32) | (Integer.MAX_VALUE - document);
    if (best.size() < k) {
      best.push(key);
    } else {
      best.updateTop(key);
    }
    if (best.size() == k) {
      least = Float.intBitsToFloat((int) (best.top() >>> 32));
    }
  }

  private byte[] packed() {
    int count = best.size();
    ByteBuffer packed = ByteBuffer.allocate(8 * count).order(ByteOrder.LITTLE_ENDIAN);
    for (int i = count - 1; i >= 0; i--) {
      long key = best.pop();
      packed.putInt(4 * i, Integer.MAX_VALUE - (int) key);
      packed.putInt(4 * (count + i), (int) (key >>> 32));
    }
    return packed.array();
  }
}
