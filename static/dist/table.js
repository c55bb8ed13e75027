import{a,b}from"./chunk.js";import"./chunk-4.js";export{b as table,a as tableOf};
