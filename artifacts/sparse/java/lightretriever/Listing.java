package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.search.LeafCollector;
import org.apache.lucene.search.Scorable;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.Sort;
import org.apache.lucene.search.SortField;
import org.apache.lucene.search.SortedNumericSelector;
import org.apache.lucene.search.SortedNumericSortField;
import org.apache.lucene.search.SortedSetSelector;
import org.apache.lucene.search.SortedSetSortField;
import org.apache.lucene.search.TopFieldCollector;
import org.apache.lucene.search.TopFieldCollectorManager;

/** Documents in the order of a declared field, without a query. */
public final class Listing {
  /** Documents between two looks at the clock. */
  private static final int WINDOW = 1 << 16;

  private Listing() {}

  /**
   * The documents from the one at offset on, up to so many, of those of a filter, or of all where it is null: int32
   * ordinals. The field is named as FilterFields has it, with the letter of its kind. Of several values the first in the
   * order counts, ties are by ordinal, and documents without a value come last. Throws LateException when it takes longer
   * than so many nanoseconds.
   */
  public static byte[] page(
      OpenIndex index, DocumentFilter among, byte[] field, boolean descending, int offset, int count, long nanoseconds)
      throws IOException {
    Sort sort = new Sort(sortField(Packed.text(field), descending));
    long deadline = System.nanoTime() + nanoseconds;
    return index.reading(
        () -> {
          int most = (int) Math.max(1, Math.min((long) offset + count, OpenIndex.count(index)));
          TopFieldCollector collector = new TopFieldCollectorManager(sort, most, null, Integer.MAX_VALUE).newCollector();
          for (LeafReaderContext segment : index.segments()) {
            LeafCollector collecting = collector.getLeafCollector(segment);
            collecting.setScorer(new Unscored());
            int end = segment.docBase + segment.reader().maxDoc();
            int seen = 0;
            int each = DocumentFilter.next(among, segment.docBase, end);
            for (; each < end; each = DocumentFilter.next(among, each + 1, end)) {
              if (seen++ % WINDOW == 0 && System.nanoTime() - deadline >= 0) {
                throw new LateException();
              }
              collecting.collect(each - segment.docBase);
            }
          }
          ScoreDoc[] page = collector.topDocs(offset, count).scoreDocs;
          ByteBuffer packed = ByteBuffer.allocate(4 * page.length).order(ByteOrder.LITTLE_ENDIAN);
          for (ScoreDoc one : page) {
            packed.putInt(one.doc);
          }
          return packed.array();
        });
  }

  private static SortField sortField(String declared, boolean descending) {
    String name = FilterFields.lucene(declared.substring(2));
    SortedNumericSelector.Type selector = descending ? SortedNumericSelector.Type.MAX : SortedNumericSelector.Type.MIN;
    switch (declared.charAt(0)) {
      case 'k':
        // Descending, all places are swapped, those of missing values, too.
        return new SortedSetSortField(
            name,
            descending,
            descending ? SortedSetSelector.Type.MAX : SortedSetSelector.Type.MIN,
            descending ? SortField.STRING_FIRST : SortField.STRING_LAST);
      case 'n':
        double last = descending ? Double.NEGATIVE_INFINITY : Double.POSITIVE_INFINITY;
        return new SortedNumericSortField(name, SortField.Type.DOUBLE, descending, selector, last);
      case 'd':
        long latest = descending ? Long.MIN_VALUE : Long.MAX_VALUE;
        return new SortedNumericSortField(name, SortField.Type.LONG, descending, selector, latest);
      default:
        throw new IllegalArgumentException("unknown kind of field: " + declared);
    }
  }

  private static final class Unscored extends Scorable {
    @Override
    public float score() {
      return 0f;
    }
  }
}
