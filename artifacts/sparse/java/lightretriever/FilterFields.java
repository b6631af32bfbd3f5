package lightretriever;

import org.apache.lucene.document.DoubleField;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.KeywordField;
import org.apache.lucene.document.LongField;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.IndexableField;

/** The fields by which documents can be filtered: a letter for the kind, then the name, as in "k:source". */
final class FilterFields {
  static final String PREFIX = "filter.";

  private final Strings fields;

  FilterFields(Strings fields) {
    this.fields = fields;
  }

  /** The name under which Lucene has a field, apart from the index' own names. */
  static String lucene(String name) {
    return PREFIX + name;
  }

  /** A value of the field at a place: a keyword, or a name where the field has none; a double (n), or milliseconds since 1970 (d). */
  IndexableField field(int place, String value) {
    String field = fields.get(place);
    String name = lucene(field.substring(2));
    switch (field.charAt(0)) {
      case 'k':
        return name.equals(PREFIX)
            ? new StringField(name, value, Field.Store.NO) // never sorted or counted
            : new KeywordField(name, value, Field.Store.NO);
      case 'n':
        return new DoubleField(name, Double.parseDouble(value), Field.Store.NO);
      case 'd':
        return new LongField(name, Long.parseLong(value), Field.Store.NO);
      default:
        throw new IllegalArgumentException("unknown kind of field: " + field);
    }
  }
}
