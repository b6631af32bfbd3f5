package lightretriever;

/** A search that was not done by its deadline. */
final class LateException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  LateException() {
    super("the search took longer than it may");
  }
}
