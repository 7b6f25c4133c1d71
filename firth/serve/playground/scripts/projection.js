// Principal components: the two directions in which vectors vary most (Pearson 1901).

const ITERATIONS = 200;

/**
 * Project vectors on the first two principal components of `basis`, a list of vectors.
 *
 * The eigenvectors of the Gram matrix (n × n) give those of the covariance, which may be larger.
 */
export function principalComponents(basis, vectors) {
  const mean = basis[0].map(
    (_, column) => basis.reduce((sum, row) => sum + row[column], 0) / basis.length,
  );
  const centre = (row) => row.map((value, column) => value - mean[column]);
  const rows = basis.map(centre),
    gram = rows.map((a) => rows.map((b) => dot(a, b)));
  const total = gram.reduce((sum, row, i) => sum + row[i], 0) || 1;
  const found = [];
  for (let axis = 0; axis < 2; axis++) found.push(largestEigenvector(gram, found));
  const axes = found.map(({ vector, value }) =>
    mean.map((_, column) =>
      value ? rows.reduce((sum, row, i) => sum + vector[i] * row[column], 0) / Math.sqrt(value) : 0,
    ),
  );
  return {
    places: vectors.map((vector) => axes.map((axis) => dot(centre(vector), axis))),
    fractions: found.map(({ value }) => value / total),
  };
}

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

/** Find the largest eigenvector orthogonal to the ones before by power iteration. */
function largestEigenvector(matrix, before) {
  let vector = matrix.map((_, i) => Math.cos(i + 1)); // any start with all directions in it
  let value = 0;
  for (let step = 0; step < ITERATIONS; step++) {
    let next = matrix.map((row) => dot(row, vector));
    for (const other of before) {
      const overlap = dot(next, other.vector);
      next = next.map((one, i) => one - overlap * other.vector[i]);
    }
    value = Math.sqrt(dot(next, next));
    if (value < 1e-12) return { vector: next.map(() => 0), value: 0 };
    vector = next.map((one) => one / value);
  }
  return { vector, value };
}
