let all = ''; process.stdin.on('data', (d) => { all += d; }).on('end', () => console.log('end', JSON.stringify(all)));
console.log(process.stdin.isTTY, process.stdin.fd, require('fs').readFileSync(0, 'utf8').length);
