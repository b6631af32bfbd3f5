package lightretriever;

/** A search that was not done by its deadline. */
final class LateException extends RuntimeException {
  /** Documents between two looks at the clock. */
  static final int WINDOW = 1 << 16;

  private static final long serialVersionUID = 1L;

  private LateException() {
    super("the search took longer than it may");
  }

  /** Throws when System.nanoTime() is past a deadline. */
  static void throwAfter(long deadline) {
    if (System.nanoTime() - deadline >= 0) {
      throw new LateException();
    }
  }
}
