const a: = 3;
let b: number = ;
