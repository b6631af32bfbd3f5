package lightretriever;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.lucene.document.DoubleField;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.KeywordField;
import org.apache.lucene.document.LongField;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.IndexableField;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.SortedSetDocValues;
import org.apache.lucene.search.LeafCollector;
import org.apache.lucene.search.Sort;
import org.apache.lucene.search.SortField;
import org.apache.lucene.search.SortedNumericSelector;
import org.apache.lucene.search.SortedNumericSortField;
import org.apache.lucene.search.SortedSetSelector;
import org.apache.lucene.search.SortedSetSortField;
import org.apache.lucene.search.TopFieldCollector;
import org.apache.lucene.search.TopFieldCollectorManager;

/**
 * The declared fields of documents: how they are written, how many documents have each value, and documents in a field's
 * order. A declared field is a letter for its kind, then its name, as in "k:source".
 */
public final class Fields {
  /** The field of the names of documents, which has no name itself. */
  static final String NAMES = name("");

  private Fields() {}

  /** The name under which Lucene has a field, apart from the index' own names. */
  static String name(String field) {
    return "filter." + field;
  }

  /** A value of a declared field: a keyword, or a name; a double (n), or milliseconds since 1970 (d). */
  static IndexableField field(String declared, String value) {
    String name = name(declared.substring(2));
    switch (declared.charAt(0)) {
      case 'k':
        return name.equals(NAMES)
            ? new StringField(name, value, Field.Store.NO) // never sorted or counted
            : new KeywordField(name, value, Field.Store.NO);
      case 'n':
        return new DoubleField(name, Double.parseDouble(value), Field.Store.NO);
      case 'd':
        return new LongField(name, Long.parseLong(value), Field.Store.NO);
      default:
        throw new IllegalArgumentException("unknown kind of field: " + declared);
    }
  }

  /**
   * Every value of a keyword field, in order, with the number of documents of a filter, or of all where it is null, that
   * have it, packed; null for more than so many values.
   */
  public static byte[] counts(OpenIndex index, DocumentFilter among, byte[] field, int most) throws IOException {
    return index.reading(
        () -> {
          TreeMap<String, Integer> counts = new TreeMap<>();
          for (LeafReaderContext segment : index.segments()) {
            SortedSetDocValues values = DocValues.getSortedSet(segment.reader(), name(Packed.text(field)));
            for (Map.Entry<Long, Integer> value : counts(index, among, segment, values).entrySet()) {
              counts.merge(values.lookupOrd(value.getKey()).utf8ToString(), value.getValue(), Integer::sum);
              if (counts.size() > most) {
                return null;
              }
            }
          }
          return Packed.counts(counts);
        });
  }

  /** In how many documents of a segment each value is, by its number. */
  private static Map<Long, Integer> counts(
      OpenIndex index, DocumentFilter among, LeafReaderContext segment, SortedSetDocValues values) throws IOException {
    // Where there are more values than documents, an array of all values would be larger than what is counted.
    int size = among == null ? OpenIndex.count(index) : among.count();
    int[] ofAll = values.getValueCount() <= size ? new int[(int) values.getValueCount()] : null;
    Map<Long, Integer> counts = new HashMap<>();
    int end = segment.docBase + segment.reader().maxDoc();
    int each = DocumentFilter.next(among, segment.docBase, end);
    for (; each < end; each = DocumentFilter.next(among, each + 1, end)) {
      int count = values.advanceExact(each - segment.docBase) ? values.docValueCount() : 0;
      for (int i = 0; i < count; i++) {
        long value = values.nextOrd();
        if (ofAll != null) {
          ofAll[(int) value]++;
        } else {
          counts.merge(value, 1, Integer::sum);
        }
      }
    }
    for (int i = 0; ofAll != null && i < ofAll.length; i++) {
      if (ofAll[i] > 0) {
        counts.put((long) i, ofAll[i]);
      }
    }
    return counts;
  }

  /**
   * The documents from the one at offset on, up to so many, of those of a filter, or of all where it is null, in the order
   * of a declared field: int32 ordinals. Of several values the first in the order counts, ties are by ordinal, and
   * documents without a value come last. CancellationException when it takes longer than so many nanoseconds.
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
            int end = segment.docBase + segment.reader().maxDoc();
            int seen = 0;
            int each = DocumentFilter.next(among, segment.docBase, end);
            for (; each < end; each = DocumentFilter.next(among, each + 1, end)) {
              if (seen++ % OpenIndex.WINDOW == 0) {
                OpenIndex.throwAfter(deadline);
              }
              collecting.collect(each - segment.docBase);
            }
          }
          return Packed.ints(Stream.of(collector.topDocs(offset, count).scoreDocs).mapToInt(hit -> hit.doc).toArray());
        });
  }

  private static SortField sortField(String declared, boolean descending) {
    String name = name(declared.substring(2));
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

}
