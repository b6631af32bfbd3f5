package lightretriever;

import java.io.IOException;
import java.util.Arrays;
import java.util.Comparator;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.util.BytesRef;

/** The posting list of a term, which stands before its first document, the term's weight, and what a score can gain. */
final class ImpactList {
  final PostingsEnum postings;
  final float weight;
  /** The most that the list adds to a score; 0 for a weight below 0. */
  final double most;

  private ImpactList(PostingsEnum postings, float weight, int largest) {
    this.postings = postings;
    this.weight = weight;
    most = Math.max(0, weight * largest);
  }

  /**
   * The lists of the query's terms that documents have, the one that can add the most first, equal ones by id. In this
   * order scores are added up, wherever that is done, so that a document always gets the same bits.
   */
  static ImpactList[] of(OpenIndex index, WeightedTerms query) throws IOException {
    ImpactList[] lists = new ImpactList[query.ids.length];
    TermsEnum each = terms(index.leaf());
    int count = 0;
    for (int i = 0; i < lists.length && each != null; i++) {
      if (each.seekExact(new BytesRef(Integer.toString(query.ids[i])))) {
        int largest = largest(each, query.ids[i], index.largest);
        lists[count++] = new ImpactList(each.postings(null, PostingsEnum.FREQS), query.weights[i], largest);
      }
    }
    lists = Arrays.copyOf(lists, count);
    Arrays.sort(lists, Comparator.comparingDouble(list -> -list.most));
    return lists;
  }

  /** Every term of the index; null when it has none. */
  static TermsEnum terms(LeafReader leaf) throws IOException {
    Terms terms = leaf == null ? null : leaf.terms(IndexBuilder.CONTENTS);
    return terms == null ? null : terms.iterator();
  }

  /** The impact in a document, 0 when it lacks the term. Documents must be asked for in ascending order. */
  int impact(int document) throws IOException {
    return from(postings, document) == document ? postings.freq() : 0;
  }

  /** The enumeration's first document from this one on, to which it goes unless it is there or beyond already. */
  static int from(PostingsEnum postings, int document) throws IOException {
    return postings.docID() < document ? postings.advance(document) : postings.docID();
  }

  /** The largest impact of the term where the enumeration stands. Its list is read for it once, and it is remembered. */
  private static int largest(TermsEnum term, int id, ConcurrentHashMap<Integer, Integer> known) throws IOException {
    Integer found = known.get(id);
    if (found == null) {
      int largest = 0;
      PostingsEnum all = term.postings(null, PostingsEnum.FREQS);
      while (all.nextDoc() != DocIdSetIterator.NO_MORE_DOCS) {
        largest = Math.max(largest, all.freq());
      }
      known.put(id, largest);
      return largest;
    }
    return found;
  }
}
