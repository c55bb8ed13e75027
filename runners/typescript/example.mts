// Loaded by transpile.cjs in a Node that stands by; it exports nothing that a program sees.
enum Warm {
  Up = 1,
}

export class Example<T> {
  constructor(private readonly value: T) {}
}
