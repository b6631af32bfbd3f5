package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.util.LongHeap;

/**
 * The best documents of a weighted query, by adding up its postings: window by window of the documents, and in a window
 * list by list. Lists that together are far from lifting a document above the last of the best hits are not added up, but
 * asked for the documents that the others make promising (MaxScore), unless there are too many of them. Within the others
 * nothing is skipped: learned impacts give them flat bounds.
 *
 * This is for an index of an older version, in Lucene's own lists; artifacts/cpp/impact_scan.hpp does the same in plain ones.
 */
final class ImpactScan {
  private static final int WINDOW = 1 << 12;
  // Products of a weight with smaller impacts are looked up: turning numbers of one kind into another, twice for every
  // posting, costs as much as adding them up.
  private static final int COMMON = 512;
  // Asking a list for a document takes about as long as adding up so many postings.
  private static final int ASKING = 8;
  // Twice what one addition of floats can be off, as a share of the sum.
  private static final double ROUNDING = 0x1p-23;

  private final ImpactList[] lists;
  private final long documents;
  // Floats, here and in the sums: what a window needs fits the first cache with room to spare.
  private final float[][] products;
  // What the lists from this one on can add to a score, rounding included.
  private final double[] rest;
  // A score is at most so many times what its parts add up to.
  private final double margin;
  private final float[] sums = new float[WINDOW];
  // Documents that may be among the best; those that are, are among them.
  private final long[] promising = new long[WINDOW / Long.SIZE];
  private final LongHeap best;
  private final int k;
  private final long[] among;
  // Lists are only asked while together they can add this share of the last of the best hits. With a larger one too many
  // documents are promising, and with a smaller one too many lists are added up.
  private final double asked;
  // What a document must score more than. One that scores as much as the last of the best k comes after it.
  private float least = 0;

  private ImpactScan(ImpactList[] lists, int documents, int k, long[] among, double asked) {
    this.lists = lists;
    this.documents = documents;
    this.k = k;
    this.among = among;
    this.asked = asked;
    best = new LongHeap(k);
    products = new float[lists.length][];
    margin = 1 + lists.length * ROUNDING;
    rest = new double[lists.length + 1];
    for (int i = lists.length - 1; i >= 0; i--) {
      products[i] = products(lists[i].weight);
      rest[i] = rest[i + 1] + lists[i].most * margin;
    }
  }

  /**
   * The best k of so many documents, of those that score above 0, packed as OpenIndex.best says. Where among is given, it
   * has a bit for every document that may be found. Lists that together can add at most the share `asked` of the last of
   * these hits' scores are not added up; any share from 0 to 1 gives the same documents.
   */
  static byte[] best(ImpactList[] lists, int documents, int k, long[] among, double asked) throws IOException {
    ImpactScan scan = new ImpactScan(lists, documents, k, among, asked);
    scan.all();
    return scan.packed();
  }

  private void all() throws IOException {
    int added = lists.length;
    for (int base = 0; base < documents; base += WINDOW) {
      while (added > 0 && rest[added - 1] <= least * asked) {
        added--;
      }
      boolean any = false;
      float enough = Math.nextDown((float) (least / margin - rest[added]));
      for (int i = 0; i < added; i++) {
        any |= add(i, enough, base);
      }
      if (any) {
        if (among != null) {
          filter(base);
        }
        int count = added < lists.length ? count() : 0;
        for (int i = added; i < lists.length && count > 0; i++) {
          count = rise(i, base, count);
        }
        collect(base);
      }
    }
  }

  /** A weight times every common impact, as in ImpactSearch.scores. */
  private static float[] products(float weight) {
    float[] products = new float[COMMON];
    for (int impact = 0; impact < COMMON; impact++) {
      products[impact] = weight * impact;
    }
    return products;
  }

  /** Adds a list's products in the window, if it has any there. A document with a sum above `enough` is promising. */
  private boolean add(int list, float enough, int base) throws IOException {
    PostingsEnum postings = lists[list].postings;
    float weight = lists[list].weight;
    float[] products = this.products[list];
    float[] sums = this.sums;
    long[] promising = this.promising;
    int end = base + WINDOW;
    int document = ImpactList.from(postings, base);
    if (document >= end) {
      return false;
    }
    do {
      int slot = document - base;
      int impact = postings.freq();
      float sum = sums[slot] + (impact < COMMON ? products[impact] : weight * impact);
      sums[slot] = sum;
      if (sum > enough) {
        promising[slot >>> 6] |= 1L << slot;
      }
      document = postings.nextDoc();
    } while (document < end);
    return true;
  }

  private void filter(int base) {
    for (int word = 0; word < promising.length; word++) {
      promising[word] &= base / Long.SIZE + word < among.length ? among[base / Long.SIZE + word] : 0;
    }
  }

  /** The number of promising documents. */
  private int count() {
    int count = 0;
    for (long word : promising) {
      count += Long.bitCount(word);
    }
    return count;
  }

  /** Adds a list's products at least for promising documents, of which there are so many; gives how many are left. */
  private int rise(int list, int base, int count) throws IOException {
    if ((long) count * ASKING * documents < lists[list].postings.cost() * WINDOW) {
      return count - ask(lists[list], rest[list], base);
    }
    add(list, Float.POSITIVE_INFINITY, base);
    return count;
  }

  /** Adds a list's products for promising documents, and forgets those that it and those after it can't lift. */
  private int ask(ImpactList list, double rest, int base) throws IOException {
    int forgotten = 0;
    for (int word = 0; word < promising.length; word++) {
      long bits = promising[word];
      while (bits != 0) {
        int slot = (word << 6) + Long.numberOfTrailingZeros(bits);
        bits &= bits - 1;
        if ((sums[slot] + rest) * margin <= least) {
          promising[word] &= ~(1L << slot);
          forgotten++;
        } else {
          sums[slot] += list.weight * list.impact(base + slot);
        }
      }
    }
    return forgotten;
  }

  private void collect(int base) {
    for (int word = 0; word < promising.length; word++) {
      long bits = promising[word];
      promising[word] = 0;
      while (bits != 0) {
        int slot = (word << 6) + Long.numberOfTrailingZeros(bits);
        bits &= bits - 1;
        float score = sums[slot];
        if (score > least) {
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
