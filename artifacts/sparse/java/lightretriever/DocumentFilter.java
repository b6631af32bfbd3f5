package lightretriever;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.document.DoubleField;
import org.apache.lucene.document.KeywordField;
import org.apache.lucene.document.LongField;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.search.FieldExistsQuery;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.MatchAllDocsQuery;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.search.Scorer;
import org.apache.lucene.search.TermInSetQuery;
import org.apache.lucene.search.Weight;
import org.apache.lucene.util.Bits;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.FixedBitSet;
import org.apache.lucene.util.QueryBuilder;

/**
 * The documents that a condition holds for, as a set of ordinals. The condition comes as texts, each operator before what
 * it is about:
 *
 * <pre>
 *   and N ...   or N ...   not ...        N conditions, or one
 *   keyword FIELD N value ...             one of the values
 *   number FIELD low high                 doubles, both included
 *   numbers FIELD N value ...             one of the doubles
 *   date FIELD low high                   milliseconds since 1970, both included
 *   exists FIELD                          any value
 *   ids N id ...                          one of the ids
 *   spelt N word ...                      one of the words, as IndexBuilder.SPELLINGS has them
 *   phrase LANGUAGE text                  its words side by side, as WordAnalyzer makes them for IndexBuilder.PHRASES
 * </pre>
 */
public final class DocumentFilter {
  private static final int MOST_NAMED = 10;

  private final FixedBitSet documents;

  private DocumentFilter(FixedBitSet documents) {
    this.documents = documents;
  }

  public static DocumentFilter of(OpenIndex index, byte[] texts) throws IOException {
    Iterator<String> condition = new Packed(texts).from(0);
    Query query = query(condition);
    if (condition.hasNext()) {
      throw new IllegalArgumentException("a condition goes on after its end with " + condition.next());
    }
    return index.reading(
        () -> {
          FixedBitSet documents = new FixedBitSet(OpenIndex.count(index));
          Weight weight = weight(index, query);
          for (LeafReaderContext leaf : index.segments()) {
            DocIdSetIterator found = found(weight, leaf);
            found.nextDoc();
            found.intoBitSet(DocIdSetIterator.NO_MORE_DOCS, documents, -leaf.docBase);
          }
          return new DocumentFilter(documents);
        });
  }

  /**
   * The ordinals of the documents that conditions, one behind the other, hold for: those of the first, then those of the
   * next, each once. Of a condition that holds for more than ten, none: many have this name.
   */
  static int[] named(OpenIndex index, Iterator<String> conditions, DocumentFilter among) throws IOException {
    Set<Integer> named = new LinkedHashSet<>();
    while (conditions.hasNext()) {
      Weight weight = weight(index, query(conditions));
      List<Integer> matching = new ArrayList<>();
      for (LeafReaderContext leaf : index.segments()) {
        DocIdSetIterator found = found(weight, leaf);
        while (matching.size() <= MOST_NAMED && found.nextDoc() != DocIdSetIterator.NO_MORE_DOCS) {
          int document = leaf.docBase + found.docID();
          if (next(among, document, document + 1) == document) {
            matching.add(document);
          }
        }
      }
      if (matching.size() <= MOST_NAMED) {
        named.addAll(matching);
      }
    }
    return named.stream().mapToInt(Integer::intValue).toArray();
  }

  private static Weight weight(OpenIndex index, Query query) throws IOException {
    IndexSearcher searcher = index.searcher();
    return searcher.createWeight(searcher.rewrite(query), ScoreMode.COMPLETE_NO_SCORES, 1f);
  }

  private static DocIdSetIterator found(Weight weight, LeafReaderContext leaf) throws IOException {
    Scorer scorer = weight.scorer(leaf);
    return scorer == null ? DocIdSetIterator.empty() : scorer.iterator();
  }

  /** The documents whose bits are set, packed as bits() says, of so many that the index has. */
  public static DocumentFilter ofBits(byte[] bits, int size) {
    long[] words = new long[FixedBitSet.bits2words(size)];
    Packed.little(bits).asLongBuffer().get(words);
    return new DocumentFilter(new FixedBitSet(words, size));
  }

  /** How many documents there are. */
  int count() {
    return documents.cardinality();
  }

  /** A bit for every ordinal, the lowest first in each byte, in whole words of 8 bytes. */
  public static byte[] bits(DocumentFilter filter) {
    long[] words = filter.documents.getBits();
    ByteBuffer packed = Packed.little(new byte[8 * words.length]);
    packed.asLongBuffer().put(words);
    return packed.array();
  }

  /** The documents of a segment, counted from its first one; null for all. Those added since the filter was made are not in. */
  Bits in(LeafReaderContext segment) {
    int size = segment.reader().maxDoc();
    int known = Math.min(size, documents.length() - segment.docBase);
    FixedBitSet part = documents;
    if (segment.docBase > 0 || known < size) {
      part = new FixedBitSet(size);
      FixedBitSet.orRange(documents, segment.docBase, part, 0, Math.max(0, known));
    }
    return part.nextClearBit(0, size) >= size ? null : part;
  }

  /** The first document of a filter, or of all where it is null, from one on and before the end; the end if there is none. */
  static int next(DocumentFilter among, int from, int end) {
    if (from >= end || among == null) {
      return Math.min(from, end);
    }
    return from < among.documents.length() ? Math.min(among.documents.nextSetBit(from), end) : end;
  }

  /** Reads a condition up to its end. */
  private static Query query(Iterator<String> texts) {
    String operator = texts.next();
    switch (operator) {
      case "and":
        return all(texts, BooleanClause.Occur.FILTER);
      case "or":
        return all(texts, BooleanClause.Occur.SHOULD);
      case "not":
        return new BooleanQuery.Builder()
            .add(MatchAllDocsQuery.INSTANCE, BooleanClause.Occur.FILTER)
            .add(query(texts), BooleanClause.Occur.MUST_NOT)
            .build();
      case "keyword":
        String field = Fields.name(texts.next());
        return field.equals(Fields.NAMES)
            ? new TermInSetQuery(field, values(texts))
            : KeywordField.newSetQuery(field, values(texts));
      case "number":
        return DoubleField.newRangeQuery(
            Fields.name(texts.next()), Double.parseDouble(texts.next()), Double.parseDouble(texts.next()));
      case "numbers":
        return DoubleField.newSetQuery(
            Fields.name(texts.next()), counted(texts).mapToDouble(Double::parseDouble).toArray());
      case "date":
        return LongField.newRangeQuery(
            Fields.name(texts.next()), Long.parseLong(texts.next()), Long.parseLong(texts.next()));
      case "exists":
        return new FieldExistsQuery(Fields.name(texts.next()));
      case "ids":
        return new TermInSetQuery(IndexBuilder.ID, values(texts));
      case "spelt":
        return new TermInSetQuery(IndexBuilder.SPELLINGS, values(texts));
      case "phrase":
        Analyzer analyzer = WordAnalyzer.ofLanguage(texts.next());
        Query words = new QueryBuilder(analyzer).createPhraseQuery(IndexBuilder.PHRASES, texts.next());
        return words == null ? MatchAllDocsQuery.INSTANCE : words; // stop words alone: no document might lack one
      default:
        throw new IllegalArgumentException("unknown operator: " + operator);
    }
  }

  private static Query all(Iterator<String> texts, BooleanClause.Occur occur) {
    BooleanQuery.Builder query = new BooleanQuery.Builder();
    for (int count = Integer.parseInt(texts.next()); count > 0; count--) {
      query.add(query(texts), occur);
    }
    return query.build();
  }

  private static List<BytesRef> values(Iterator<String> texts) {
    return counted(texts).map(BytesRef::new).toList();
  }

  private static Stream<String> counted(Iterator<String> texts) {
    return IntStream.range(0, Integer.parseInt(texts.next())).mapToObj(i -> texts.next());
  }
}
